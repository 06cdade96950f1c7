import { appendFileSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sleep } from '../../src/core/sleep.js';
import type { Client } from './client.js';
import {
  type CallAnswer,
  type CallLedger,
  type CallRecord,
  CROSSING_MS,
  checkCalls,
  type Execution,
  GRACE_MS,
} from './rpc-ledger.js';

export interface CallOptions {
  /** How long the handler takes, in ms; default the daemon's own. */
  readonly ms?: number;
  /** Default 10,000. */
  readonly timeoutMs?: number;
  readonly user?: string;
  /** Default: the call's key. `null` sends none. */
  readonly id?: string | null;
  readonly idempotent?: boolean;
  readonly waitForWorkerMs?: number;
  readonly maxRuns?: number;
  readonly mayRunLate?: boolean;
  /** More for the daemon. */
  readonly params?: Readonly<Record<string, unknown>>;
}

interface Pending {
  readonly record: CallRecord & { readonly answers: { at: number; answer: CallAnswer }[] };
  readonly request: Readonly<Record<string, unknown>>;
  readonly answered: (answer: CallAnswer | undefined) => void;
}

/** Past the deadline and the ledger's grace: who has no answer by then gets none. */
const GIVE_UP_MS = 3000;

let keys = 0;

/** All calls of a test and the file in which daemons write down what they ran. */
export class CallBook implements AsyncDisposable {
  readonly calls: CallRecord[] = [];
  /** Acks that came again, on the wire. */
  readonly doubled: string[] = [];
  readonly #folder: string;

  private constructor(
    folder: string,
    private readonly graceMs: number,
  ) {
    this.#folder = folder;
  }

  static async open(graceMs: number): Promise<CallBook> {
    const book = new CallBook(await mkdtemp(join(tmpdir(), 'holdfast-calls-')), graceMs);
    await writeFile(book.file, '');
    return book;
  }

  get file(): string {
    return join(this.#folder, 'executions');
  }

  /** Of a daemon in this very process. */
  noteRun({ id, params, attempt }: { id: string; params: { key?: string }; attempt: number }): void {
    appendFileSync(this.file, `${params.key ?? '-'} ${attempt} ${process.pid} ${id} ${Date.now()}\n`);
  }

  async executions(): Promise<Execution[]> {
    const lines = (await readFile(this.file, 'utf8')).split('\n').filter((line) => line !== '');
    return lines.map((line) => {
      const [key = '', attempt, pid, , at] = line.split(' ');
      return { key, attempt: Number(attempt), pid: Number(pid), at: Number(at) };
    });
  }

  async runsOf(key: string): Promise<number> {
    return (await this.executions()).filter((execution) => execution.key === key).length;
  }

  /** Of all calls so far, or of these. */
  async check(calls: readonly CallRecord[] = this.calls): Promise<CallLedger> {
    const all = await this.executions();
    const known = new Set(this.calls.map(({ key }) => key));
    const asked = new Set(calls.map(({ key }) => key));
    const ofThese = all.filter(({ key }) => asked.has(key) || !known.has(key));
    // a daemon that waits for a core begins late with what it was given in time
    const crossingMs = CROSSING_MS + (this.graceMs - GRACE_MS) / 2;
    const ledger = checkCalls(calls, ofThese, Date.now(), this.graceMs, crossingMs);
    if (this.doubled.length === 0) return ledger;
    const details = { ...ledger.details, doubled: this.doubled.slice(0, 5) };
    return { ...ledger, faults: ledger.faults + this.doubled.length, details };
  }

  [Symbol.asyncDispose](): Promise<void> {
    return rm(this.#folder, { recursive: true, force: true });
  }
}

export interface Told {
  readonly call: CallRecord;
  /** `undefined`: none came, long after the deadline. */
  readonly answer: CallAnswer | undefined;
  /** From the call to its first answer. */
  readonly ms: number;
}

/** A stock client that calls. After a reconnect it sends what is unanswered again, same id and payload, as a careful one does. */
export class Caller implements AsyncDisposable {
  readonly #pending = new Set<Pending>();
  readonly #acked = new Set<number>();
  #newestKey = '';

  constructor(
    readonly client: Client,
    readonly user: string,
    private readonly book: CallBook,
  ) {
    client.socket.on('connect', () => {
      for (const pending of this.#pending) if ('id' in pending.request) this.#send(pending);
    });
    client.socket.io.on('packet', ({ type, id }) => {
      // the stock client passes a second ack over in silence; 3 and 6 are ACK and BINARY_ACK
      if ((type !== 3 && type !== 6) || id === undefined) return;
      if (this.#acked.has(id)) this.book.doubled.push(`${user}: ack ${id}`);
      this.#acked.add(id);
    });
  }

  get newestKey(): string {
    return this.#newestKey;
  }

  async call(method: string, options: CallOptions = {}): Promise<Told> {
    const {
      ms,
      timeoutMs = 10_000,
      user,
      id,
      idempotent,
      waitForWorkerMs,
      maxRuns = 1,
      mayRunLate,
      params = {},
    } = options;
    const key = `call-${process.pid}-${++keys}`;
    this.#newestKey = key;
    const startedAt = Date.now();
    const record = {
      key,
      method,
      user: user ?? this.user,
      startedAt,
      deadline: startedAt + timeoutMs,
      maxRuns,
      mayRunLate,
      answers: [],
    };
    this.book.calls.push(record);
    const request = {
      method,
      params: { key, ...(ms !== undefined && { ms }), ...params },
      timeoutMs,
      ...(id !== null && { id: id ?? key }),
      ...(user !== undefined && { user }),
      ...(idempotent !== undefined && { idempotent }),
      ...(waitForWorkerMs !== undefined && { waitForWorkerMs }),
    };
    const giveUp = new AbortController();
    const answer = await new Promise<CallAnswer | undefined>((answered) => {
      const pending = { record, request, answered };
      this.#pending.add(pending);
      if (this.client.socket.connected) this.#send(pending);
      sleep(timeoutMs + GIVE_UP_MS, giveUp.signal).then(() => this.#settle(pending, undefined));
    });
    giveUp.abort();
    return { call: record, answer, ms: Date.now() - startedAt };
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.client.stop();
  }

  #send(pending: Pending): void {
    this.client.socket.emit('rpc-call', pending.request, (answer: CallAnswer) => {
      pending.record.answers.push({ at: Date.now(), answer });
      this.#settle(pending, answer);
    });
  }

  #settle(pending: Pending, answer: CallAnswer | undefined): void {
    this.#pending.delete(pending);
    pending.answered(answer);
  }
}

/** Calls at a steady pace, whether or not the ones before were answered. */
export class CallLoad {
  readonly #told: Promise<Told>[] = [];
  readonly #timer: NodeJS.Timeout;
  readonly #startedAt = performance.now();

  constructor(
    private readonly everyMs: number,
    private readonly call: (n: number) => Promise<Told>,
  ) {
    this.#timer = setInterval(() => this.#catchUp(), Math.max(5, everyMs));
  }

  get made(): number {
    return this.#told.length;
  }

  /** Calls no more; resolves when every call has its answer, or none for good. */
  async stop(): Promise<readonly Told[]> {
    clearInterval(this.#timer);
    return Promise.all(this.#told);
  }

  #catchUp(): void {
    const due = Math.floor((performance.now() - this.#startedAt) / this.everyMs);
    while (this.#told.length < due) this.#told.push(this.call(this.#told.length));
  }
}

/** `ok` or the code, or `silent`. */
export function wordOf({ answer }: Told): string {
  return answer ? (answer.ok ? 'ok' : (answer.code ?? 'none')) : 'silent';
}

/** Word → how often. */
export function tally(told: readonly Told[]): Readonly<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const each of told) counts[wordOf(each)] = (counts[wordOf(each)] ?? 0) + 1;
  return counts;
}

export function slowest(told: readonly Told[]): number {
  return told.reduce((most, { ms }) => Math.max(most, ms), 0);
}
