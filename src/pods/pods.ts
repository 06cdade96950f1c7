import { once } from 'node:events';
import type { Logger, Meter } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep } from '../core/sleep.js';
import { Connection, type RedisAddress } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { Inbox } from './inbox.js';
import { Lease } from './lease.js';
import { type HandOver, Reaper } from './reaper.js';

const SILENCE_MS = 2500;
const INBOX_SILENCE_MS = 3000;

export interface PodsOptions {
  readonly url: RedisAddress;
  readonly keys: Keys;
  readonly pod: string;
  readonly processId: string;
  readonly handOvers: readonly HandOver[];
  /** Processes all of whose rooms have their hand-over here; any other is handed over in part, and stays for who has the rest. Default: all. */
  readonly mayRemove?: (processId: string) => boolean;
  /** `start` waits for a Redis that refuses, too. Default false: it rejects. */
  readonly isPatient?: boolean;
  readonly onReturn: () => void;
  readonly onLost: () => void;
  readonly logger: Logger;
  readonly meter: Meter;
}

/** Who is alive, and how to reach them. */
export class Pods extends Service {
  readonly inbox: Inbox;
  /** For short commands of everything about pods and sockets. */
  readonly connection: Connection;
  readonly #reads: Connection;
  readonly #lease: Lease;
  readonly #stopping = new AbortController();

  constructor(private readonly options: PodsOptions) {
    super();
    const { url, keys, pod, processId, handOvers, onReturn, onLost, logger, meter } = options;
    const { mayRemove = () => true, isPatient = false } = options;
    const later = { url, opensLater: true };
    this.connection = new Connection({ ...later, name: `holdfast:${pod}:pods`, silenceMs: SILENCE_MS });
    this.#reads = new Connection({ ...later, name: `holdfast:${pod}:inbox`, silenceMs: INBOX_SILENCE_MS });
    const shared = { connection: this.connection, keys, processId };
    this.inbox = new Inbox({ reads: this.#reads, commands: this.connection, keys, processId, logger });
    this.#lease = new Lease({
      ...shared,
      logger,
      pod,
      onLapsed: (ids) => reaper.bury(ids),
      onReturn: () => {
        // what took the lease may have taken the inbox
        this.inbox.restore();
        onReturn();
      },
      onLost,
      isPatient,
    });
    const reaped = meter.counter({ name: 'processes_reaped_total', help: 'Dead processes that this one buried.' });
    const reaper = new Reaper({ ...shared, lease: this.#lease, handOvers, mayRemove, logger, reaped });
  }

  /** This process may take others for dead by their leases. */
  get mayJudge(): boolean {
    return this.#lease.mayJudge;
  }

  /** Processes whose lease runs, this one among them. */
  live(): Promise<readonly string[]> {
    return this.#lease.live();
  }

  protected async onStart(): Promise<void> {
    try {
      for (const connection of [this.connection, this.#reads]) connection.open();
      for (const connection of [this.connection, this.#reads])
        while (!(await connection.whenUp(500))) this.#throwIfStopping();
      // whoever sees the lease may write to the inbox
      await this.inbox.start();
      this.#throwIfStopping();
      await this.#lease.start();
    } catch (error) {
      if (!this.#stopping.signal.aborted) {
        await this.inbox.stop();
        this.#close();
      }
      throw error;
    }
  }

  protected async onStop(): Promise<void> {
    this.#stopping.abort();
    await this.inbox.stop();
    await this.#lease.stop();
    this.#close();
  }

  #close(): void {
    this.connection.close();
    this.#reads.close();
  }

  #throwIfStopping(): void {
    if (this.#stopping.signal.aborted) throw new Error('stopped while starting');
  }

  /** Resolves when a message of this process to itself has come back through its inbox. */
  async hearSelf(): Promise<void> {
    const heard = new AbortController();
    this.inbox.on('self-test', () => heard.abort());
    while (!heard.signal.aborted) {
      this.#throwIfStopping();
      await this.inbox.send(this.options.processId, { type: 'self-test' }).catch(() => false);
      if (!heard.signal.aborted) await Promise.race([once(heard.signal, 'abort'), sleep(500)]);
    }
  }
}
