import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import type { Connection } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';

const BLOCK_MS = 2000;
const LIFE_MS = 60_000;
const RENEW_MS = 15_000;
const MAX_MESSAGES = 10_000;

export type InboxMessage = Readonly<Record<string, unknown>> & { readonly type: string };

export interface InboxOptions {
  /** Blocks on reads; nobody else's. */
  readonly reads: Connection;
  readonly commands: Connection;
  readonly keys: Keys;
  readonly processId: string;
  readonly logger: Logger;
}

/**
 * Messages from process to process: one stream each, which lives 60 s longer than its reader. Only what is there is written
 * to, so a message to a dead process makes nothing that would stay.
 */
export class Inbox extends Service {
  readonly #handlers = new Map<string, (message: InboxMessage) => void>();
  readonly #stopping = new AbortController();
  #running: Promise<unknown> = Promise.resolve();
  #last = '0-0';
  readonly #onReady = (): void => this.restore();

  constructor(private readonly options: InboxOptions) {
    super();
  }

  /** Messages of `type` go to `handler`. One handler per type. */
  on(type: string, handler: (message: InboxMessage) => void): void {
    this.#handlers.set(type, handler);
  }

  /** False: that process has no inbox (any more). */
  async send(processId: string, message: InboxMessage): Promise<boolean> {
    const { commands, keys } = this.options;
    const id = await commands.redis.xadd(
      keys.inbox(processId),
      'NOMKSTREAM',
      'MAXLEN',
      '~',
      MAX_MESSAGES,
      '*',
      'm',
      JSON.stringify(message),
    );
    return id !== null;
  }

  /** Makes the inbox anew if it has gone. */
  restore(): void {
    // Redis is away: its return brings this again
    this.#create().catch(() => {});
  }

  protected async onStart(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted && !(await this.#create().catch(() => false))) await sleep(100, signal);
    this.options.commands.on('ready', this.#onReady);
    this.#running = Promise.all([this.#readForever(), this.#renewForever()]);
  }

  protected async onStop(): Promise<void> {
    const { reads, commands, keys, processId } = this.options;
    this.#stopping.abort();
    commands.off('ready', this.#onReady);
    reads.close();
    await within(500, this.#running);
    await within(
      500,
      commands.redis.del(keys.inbox(processId)).catch(() => 0),
    );
  }

  async #create(): Promise<true> {
    const { commands, keys, processId } = this.options;
    const key = keys.inbox(processId);
    const id = await commands.redis.xadd(key, 'MAXLEN', '~', MAX_MESSAGES, '*', 'm', '{"type":"hello"}');
    await commands.redis.pexpire(key, LIFE_MS);
    // another Redis took over, whose clock is behind: what comes now would be below what was read
    if (id !== null && isBelow(id, this.#last)) this.#last = id;
    return true;
  }

  async #renewForever(): Promise<void> {
    const { commands, keys, processId } = this.options;
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      await sleep(RENEW_MS, signal);
      if (signal.aborted) return;
      try {
        if ((await commands.redis.pexpire(keys.inbox(processId), LIFE_MS)) === 0) await this.#create();
      } catch {
        // Redis is away: the next round makes it anew if it went
      }
    }
  }

  async #readForever(): Promise<void> {
    const { reads, keys, processId } = this.options;
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      if (!reads.isUp) {
        await reads.whenUp(200);
        continue;
      }
      try {
        const found = await reads.redis.xread(
          'COUNT',
          500,
          'BLOCK',
          BLOCK_MS,
          'STREAMS',
          keys.inbox(processId),
          this.#last,
        );
        for (const [id, fields] of found?.[0]?.[1] ?? []) {
          this.#last = id;
          this.#dispatch(fields[1]);
        }
      } catch {
        await sleep(50, signal);
      }
    }
  }

  #dispatch(text: string | undefined): void {
    try {
      const message = JSON.parse(text ?? '') as InboxMessage;
      this.#handlers.get(message.type)?.(message);
    } catch (error) {
      this.options.logger.error(
        { event: 'inbox_error', err: error },
        'a message of another process could not be handled',
      );
    }
  }
}

function isBelow(id: string, other: string): boolean {
  const [ms = 0, seq = 0] = id.split('-').map(Number);
  const [otherMs = 0, otherSeq = 0] = other.split('-').map(Number);
  return ms < otherMs || (ms === otherMs && seq < otherSeq);
}
