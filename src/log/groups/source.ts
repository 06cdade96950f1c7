import { fullJitter } from '../../core/backoff.js';
import type { Logger } from '../../core/ports.js';
import { sleep } from '../../core/sleep.js';
import { type Connection, replyCode } from '../../redis/connect.js';
import type { GroupKeys, PartitionKeys } from '../../redis/keys.js';
import { loadScript } from '../../redis/script.js';
import { Refusals } from '../refusals.js';
import type { Holding, Pending } from './holding.js';
import type { RawEntry } from './raw-entry.js';

const ACKNOWLEDGE = loadScript(import.meta.url, 'acknowledge');
const BEGIN = loadScript(import.meta.url, 'begin');
const FAIL = loadScript(import.meta.url, 'fail', ['bury']);
const TAKE = loadScript(import.meta.url, 'take', ['bury']);
const RELEASE = loadScript(import.meta.url, 'release');

const MAX_ACKS = 500;
const RETRY_MS = 50;
const MAX_RETRY_MS = 1000;

/** `taken`: another has it, or it was delivered again. `gone`: nobody has it. `trimmed`: it is no longer in the log. */
export type Fate = 'ok' | 'taken' | 'gone' | 'trimmed';

export type FailureReason = 'error' | 'timeout';

export interface Taken {
  /** Where to look on; '': all was looked at. */
  readonly next: string;
  /** That became dead letters, for their members died with them too often. */
  readonly dead: number;
  /** That are no longer in the log, and the first and the last of them. */
  readonly trimmed: { readonly count: number; readonly first: string; readonly last: string };
  readonly entries: readonly (readonly [raw: RawEntry, deliveries: number])[];
}

export interface SourceOptions {
  readonly partition: number;
  readonly isRedriven: boolean;
  readonly keys: PartitionKeys;
  readonly groupKeys: GroupKeys;
  /** As Redis has it. */
  readonly group: string;
  readonly member: string;
  readonly commands: Connection;
  readonly logger: Logger;
  readonly maxDeliveries: number;
  readonly maxDeadLetters: number;
  /** Most entries that the member may hold. */
  readonly mostHeld: () => number;
  /** @param lost ids of those that were not acknowledged */
  readonly onSettled: (all: readonly Pending[], lost: ReadonlyMap<string, Fate>) => void;
  /** Ends with the member. */
  readonly signal: AbortSignal;
}

/** One stream that a group reads in one partition, and what its members do with its pending entries. */
export class Source {
  readonly stream: string;
  readonly #refusals: Refusals;
  readonly #acks: Pending[] = [];
  #sending: Promise<void> | undefined;

  constructor(readonly options: SourceOptions) {
    this.#refusals = new Refusals(options.logger, { op: 'group', partition: options.partition });
    this.stream = options.isRedriven ? options.groupKeys.redriven : options.keys.stream;
  }

  get partition(): number {
    return this.options.partition;
  }

  get isRedriven(): boolean {
    return this.options.isRedriven;
  }

  /** What was handled is acknowledged with all that is, in one call; `onSettled` says what came of it. */
  acknowledge(pending: Pending): void {
    this.#acks.push(pending);
    this.#sending ??= this.#send();
  }

  /** Resolves when all that was to be acknowledged is, or the member ended. */
  async whenSettled(): Promise<void> {
    await this.#sending;
  }

  /** The next delivery of an entry that was delivered before begins, and is counted. */
  async begin({ id, deliveries }: Pending): Promise<Fate> {
    const { group, member } = this.options;
    const args = (isAgain: boolean) => [group, member, id, deliveries, isAgain ? 'again' : ''];
    return ((await this.#surely(BEGIN, [this.stream], args)) as Fate | undefined) ?? 'gone';
  }

  /** `again`: it may be tried again. `dead`: it is a dead letter now. */
  async fail(
    { id, deliveries }: Pending,
    reason: FailureReason,
    failure: object,
    most = this.options.maxDeliveries,
  ): Promise<'again' | 'dead' | Exclude<Fate, 'ok'>> {
    const { group, member, maxDeadLetters } = this.options;
    const args = [group, member, this.#drop, this.#prefix, id, deliveries, most, JSON.stringify(failure), reason];
    let wasSent = false;
    const answer = await this.#surely(FAIL, this.#allKeys, (isAgain) => {
      wasSent = isAgain;
      return [...args, maxDeadLetters];
    });
    const outcome = (answer as 'again' | 'dead' | Exclude<Fate, 'ok'> | undefined) ?? 'gone';
    // the first call, whose answer was lost, has buried it
    return outcome === 'gone' && wasSent && answer !== undefined && deliveries >= most ? 'dead' : outcome;
  }

  /** @throws when Redis can't be asked */
  async take(whose: 'others' | 'mine' | 'all', { idleMs, from, most, now, living }: TakeRequest): Promise<Taken> {
    const { group, member, maxDeliveries, maxDeadLetters, commands } = this.options;
    const args = [group, member, this.#drop, this.#prefix, idleMs, from, most, maxDeliveries, maxDeadLetters, now];
    const reply = (await commands.run(TAKE, this.#allKeys, [...args, whose, ...living])) as [
      string,
      number,
      number,
      string,
      string,
      ...[string, readonly string[], number, string][],
    ];
    const [next, dead, count, first, last, ...rows] = reply;
    const entries = rows.map(([id, fields, deliveries]) => [[id, fields], deliveries] as const);
    return { next, dead, trimmed: { count, first, last }, entries };
  }

  /** Others may take them at once; what no handler began has not been delivered. */
  async release(all: readonly Pick<Holding, 'id' | 'deliveries' | 'isCounted'>[]): Promise<void> {
    const { group, member, commands } = this.options;
    for (let at = 0; at < all.length; at += MAX_ACKS) {
      const args = all
        .slice(at, at + MAX_ACKS)
        .flatMap(({ id, deliveries, isCounted }) => [id, deliveries - (isCounted ? 1 : 0)]);
      await commands.run(RELEASE, [this.stream], [group, member, ...args]);
    }
  }

  get #drop(): string {
    return this.isRedriven ? 'drop' : '';
  }

  get #prefix(): string {
    return this.isRedriven ? 'r:' : '';
  }

  get #allKeys(): readonly string[] {
    const { failures, dead, state } = this.options.groupKeys;
    return [this.stream, failures, dead, state];
  }

  async #send(): Promise<void> {
    // what ends in this turn of the loop goes together
    await new Promise(setImmediate);
    while (this.#acks.length > 0) {
      const batch = this.#acks.splice(0, MAX_ACKS).sort((a, b) => a.ms - b.ms || a.seq - b.seq);
      const lost = await this.#acknowledge(batch);
      this.options.onSettled(batch, lost);
    }
    // at once: what ends from now on is sent by the next one
    this.#sending = undefined;
  }

  /** @param batch ascending by id. @returns what was no longer the member's */
  async #acknowledge(batch: readonly Pending[]): Promise<ReadonlyMap<string, Fate>> {
    const { group, member, groupKeys, mostHeld } = this.options;
    const range = [batch[0]?.id ?? '', batch.at(-1)?.id ?? ''] as const;
    // one text: an argument each would cost more than all else that is done for it here
    let once = '';
    const again: (string | number)[] = [];
    for (const { id, deliveries } of batch) {
      if (deliveries === 1) once += `${id} `;
      else again.push(id, deliveries);
    }
    const hasFailed = batch.some((pending) => pending.hasFailed) ? 1 : 0;
    const args = [group, member, this.#drop, this.#prefix, hasFailed, mostHeld(), ...range, once, ...again];
    let wasSent = false;
    const lost = (await this.#surely(ACKNOWLEDGE, [this.stream, groupKeys.failures], (isAgain) => {
      wasSent = isAgain;
      return args;
    })) as readonly string[] | undefined;
    // there is no group any more
    if (!lost) return new Map(batch.map(({ id }) => [id, 'gone']));
    const fates = new Map<string, Fate>();
    for (let index = 0; index < lost.length; index += 2) {
      const [id, fate] = lost.slice(index, index + 2) as [string, Fate];
      // what was sent twice, for its first answer was lost, may have been acknowledged by the first
      if (fate !== 'gone' || !wasSent) fates.set(id, fate);
    }
    return fates;
  }

  /** Until Redis answers, as long as the member runs. `undefined`: the group isn't there any more, or the member ended. */
  async #surely(
    script: Parameters<Connection['run']>[0],
    keys: readonly string[],
    args: (isAgain: boolean) => readonly (string | number)[],
  ): Promise<unknown> {
    const { commands, signal } = this.options;
    for (let tries = 0; !signal.aborted; tries++) {
      try {
        const answer = await commands.run(script, keys, args(tries > 0));
        this.#refusals.succeeded();
        return answer;
      } catch (error) {
        if (replyCode(error) === 'NOGROUP') return undefined;
        this.#refusals.failed(error);
        await sleep(fullJitter(tries, RETRY_MS, MAX_RETRY_MS), signal);
        if (!commands.isUp) await commands.whenUp(1000);
      }
    }
    return undefined;
  }
}

export interface TakeRequest {
  readonly idleMs: number;
  /** '-': from the oldest. */
  readonly from: string;
  readonly most: number;
  /** Redis ms. */
  readonly now: number;
  readonly living: readonly string[];
}
