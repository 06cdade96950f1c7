import { setTimeout as pass } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { expect } from 'vitest';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { startTcpProxy, type TcpProxy } from '../harness/tcp-proxy.js';
import { adminOf, KEYS, Ledger, startPod, type TestPod } from '../log/rig.js';

/** Long enough for a hanging read to come back empty soon, in ms. */
const BLOCK_MS = 200;

/** Deadline, in ms, of what takes long on a busy machine only. */
export const PATIENT_MS = 30_000;

/** What a reader missed, and what it had more than once, of all that was accepted. */
export interface Account {
  readonly lost: number;
  readonly repeated: number;
}

/**
 * The control: reads as the manual of XREADGROUP shows it, and takes the group for the truth. No place of its own, no second
 * fetch, no look at what it should have. Of entries that are lost by a fault it never hears.
 */
export class PlainGroupReader implements AsyncDisposable {
  readonly ids: string[] = [];
  /** The newest entry that it was given. */
  #at = '';
  readonly #redis: Redis;
  readonly #running: Promise<void>;
  #isClosed = false;
  #emptyReads = 0;

  constructor(
    url: string,
    private readonly group: string,
    private readonly consumer = 'control',
  ) {
    this.#redis = new Redis(url, { retryStrategy: () => 50, maxRetriesPerRequest: null });
    this.#redis.on('error', () => {});
    this.#running = this.#readForever();
  }

  /** Resolves when a read that was begun from now on came back empty: it has all that its group will give. */
  async settle(): Promise<void> {
    // the read that is under way may have begun before
    const enough = this.#emptyReads + 2;
    await eventually(() => this.#emptyReads >= enough, { withinMs: PATIENT_MS, what: 'the control to be idle' });
  }

  /** Resolves when it was given an entry since the call: so it has its group, and its next request is another read. */
  async readsOn(): Promise<void> {
    const had = this.ids.length;
    await eventually(() => this.ids.length > had, { withinMs: PATIENT_MS, what: 'the control to read on' });
  }

  /**
   * For when no answer reaches it: resolves with true once its group counts an entry as given to it that it did not get, or
   * with false if its read was over before an entry came, and so what got lost was nothing.
   */
  async misses(admin: Redis): Promise<boolean> {
    // a round trip later it has what was on its way
    await admin.ping();
    const isBehind = async (): Promise<boolean> => {
      const groups = (await admin.xinfo('GROUPS', KEYS.stream)) as unknown[][];
      const fields = groups.find((flat) => flat[1] === this.group) ?? [];
      return fields[fields.indexOf('last-delivered-id') + 1] !== this.#at;
    };
    return eventually(isBehind, { withinMs: 5 * BLOCK_MS }).then(
      () => true,
      () => false,
    );
  }

  account(due: Iterable<string>): Account {
    const had = new Set(this.ids);
    const lost = [...due].filter((id) => !had.has(id)).length;
    return { lost, repeated: this.ids.length - had.size };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    this.#redis.disconnect();
    await this.#running;
  }

  async #readForever(): Promise<void> {
    while (!this.#isClosed) {
      try {
        await this.#readOnce();
      } catch (error) {
        if (/NOGROUP/.test(String(error)))
          await this.#redis.xgroup('CREATE', KEYS.stream, this.group, '$').catch(() => {});
        await pass(10);
      }
    }
  }

  async #readOnce(): Promise<void> {
    const reply = await this.#redis.xreadgroup(
      'GROUP',
      this.group,
      this.consumer,
      'COUNT',
      500,
      'BLOCK',
      BLOCK_MS,
      'NOACK',
      'STREAMS',
      KEYS.stream,
      '>',
    );
    const found = (reply as [string, [string, string[]][]][] | null)?.[0]?.[1];
    if (!found) this.#emptyReads++;
    for (const [id, fields] of found ?? []) {
      this.#at = id;
      const event = /"i":"([^"]+)"/.exec(fields[1] ?? '')?.[1];
      if (event !== undefined) this.ids.push(event);
    }
  }
}

export interface ReadFault {
  readonly redis: RedisProcess;
  readonly admin: Redis;
  /** Between Redis and both readers. */
  readonly proxy: TcpProxy;
  /** The groups of both readers. */
  readonly groups: readonly string[];
  readonly reader: TestPod;
  readonly control: PlainGroupReader;
  readonly ledger: Ledger;
}

/** Does `work` while no request of either reader gets through: what it brings about comes before their answer to it. */
export async function unawares({ proxy, control }: ReadFault, work: () => Promise<void>): Promise<void> {
  await control.readsOn();
  proxy.holdRequests(true);
  await work();
  proxy.holdRequests(false);
}

/**
 * Our reader and the control behind one proxy, each in a group of its own, while `fault` happens to both and a third pod, which
 * it doesn't reach, appends. Afterwards ours has every entry once, in order, without a gap; what the control lacks is returned.
 *
 * @param user what both readers log in as: `name:password@`
 */
export async function readUnder(fault: (on: ReadFault) => Promise<void>, user = ''): Promise<Account> {
  await using redis = await startRedis({ aof: 'off' });
  await using admin = adminOf(redis.url);
  if (user !== '') await admin.acl('SETUSER', user.slice(0, user.indexOf(':')), 'on', 'nopass', '~*', '&*', '+@all');
  await using proxy = await startTcpProxy(redis.port);
  const url = `redis://${user}127.0.0.1:${proxy.port}`;
  await using reader = await startPod('reader', { url });
  await using writer = await startPod('writer', { url: redis.url });
  await using control = new PlainGroupReader(url, 'pod:control');
  await control.settle();
  const ledger = new Ledger(admin);
  const groups = ['pod:reader', 'pod:control'];
  const work = async (): Promise<void> => {
    await eventually(() => reader.ids.length > 10 && control.ids.length > 10, {
      withinMs: PATIENT_MS,
      what: 'both to read',
    });
    await fault({ redis, admin, proxy, groups, reader, control, ledger });
    await eventually(() => ledger.missing(reader).length < 5, { withinMs: PATIENT_MS, what: 'the reader to be live' });
  };
  // a machine that stands still for seconds is no fault of the reader's: what was refused for it is tried again
  await ledger.during([writer], work, 100, 3);
  for (const pod of [reader, writer]) {
    await ledger.settle(pod);
    expect([pod.gaps, pod.turns]).toEqual([[], []]);
  }
  expect(reader.isFenced).toBe(false);
  expect([...ledger.refused, ...ledger.unknown]).toEqual([]);
  await control.settle();
  return control.account(ledger.accepted.keys());
}
