import type { Connection } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { loadScript } from '../redis/script.js';

const SAVE = loadScript(import.meta.url, 'record-save');
const CLAIM = loadScript(import.meta.url, 'record-claim');
const DROP = loadScript(import.meta.url, 'record-drop');

/** For garbage only: a living socket's record is renewed long before. */
export const RECORD_LIFE_MS = 24 * 3_600_000;

export interface FoundRecord<State> {
  readonly state: State;
  /** `<process id>:<connection number>`, with its line end. */
  readonly owner: string;
}

/**
 * One key per resumable connection. The owner is the fence: whoever takes a record over changes it, and a predecessor's late
 * save, or its death, changes nothing. A record outlives its process by the recovery window: it is good while its owner is
 * among the processes, lapsed or not, or while the owner's death mark exists.
 */
export class ResumeRecords<State> {
  #connections = 0;

  constructor(
    private readonly connection: Connection,
    private readonly keys: Keys,
    private readonly processId: string,
    private readonly windowMs: number,
  ) {}

  newOwner(): string {
    return `${this.processId}:${++this.#connections}\n`;
  }

  processOf(owner: string): string {
    return owner.slice(0, owner.lastIndexOf(':'));
  }

  /** `'lost'`: another owner has it. */
  async save(pid: string, owner: string, state: State, lifeMs = RECORD_LIFE_MS): Promise<'saved' | 'lost'> {
    const saved = await this.connection.run(SAVE, [this.keys.resume(pid)], [owner, JSON.stringify(state), lifeMs]);
    return saved === 1 ? 'saved' : 'lost';
  }

  /**
   * The record of a connection that may be resumed. `'orphaned'`: of a process that nobody knows, long dead, or alive and
   * about to renew its lease after Redis lost everything. Rejects when Redis can't answer.
   */
  async find(pid: string): Promise<FoundRecord<State> | 'orphaned' | undefined> {
    const { redis } = this.connection;
    const value = await redis.get(this.keys.resume(pid));
    if (value === null) return undefined;
    const line = value.indexOf('\n');
    const owner = value.slice(0, line + 1);
    const process = this.processOf(owner);
    if (process !== this.processId) {
      const [score, mark] = await Promise.all([
        redis.zscore(this.keys.processes, process),
        redis.exists(this.keys.deathMark(process)),
      ]);
      if (score === null && mark === 0) return 'orphaned';
    }
    return { owner, state: JSON.parse(value.slice(line + 1)) as State };
  }

  /** True: the record is `owner`'s from now on. False: somebody else was faster. */
  async claim(pid: string, from: string, owner: string, lifeMs = RECORD_LIFE_MS): Promise<boolean> {
    return (await this.connection.run(CLAIM, [this.keys.resume(pid)], [from, owner, lifeMs])) === 1;
  }

  async drop(pid: string, owner: string): Promise<void> {
    await this.connection.run(DROP, [this.keys.resume(pid)], [owner]);
  }

  /** From now on records of that process end with the recovery window, unless it comes back. */
  async markDead(process: string): Promise<void> {
    if (this.windowMs > 0) await this.connection.redis.set(this.keys.deathMark(process), 1, 'PX', this.windowMs);
  }

  async unmarkDead(): Promise<void> {
    await this.connection.redis.del(this.keys.deathMark(this.processId));
  }
}
