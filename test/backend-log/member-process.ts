import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { GroupGap } from '../../src/backend-log/index.js';
import { Child } from '../harness/child.js';

const PROGRAM = fileURLToPath(new URL('member-process.mjs', import.meta.url));

export interface MemberSettings {
  readonly url: string;
  readonly topic: string;
  readonly group: string;
  /** By the `key` of an entry's data. */
  readonly ordered: boolean;
  /** Its process's own: members' ids begin with it. */
  readonly name: string;
  /** File to which it writes what it sees. */
  readonly ledger: string;
  /** Mean time of a handler, unless the entry's data says `ms`. */
  readonly handlerMs: number;
  /** Deliveries that fail, of 100. */
  readonly failPercent: number;
  readonly leaseMs: number;
  readonly concurrency: number;
  readonly maxDeliveries: number;
  readonly backoffMs: number;
  readonly maxBackoffMs: number;
}

/** A line of the ledger. Times are ms since 1970. */
export type Note = { readonly name: string; readonly at: number; readonly member: string } & (
  | { readonly what: 'ready' | 'stopped' }
  | { readonly what: 'gap'; readonly gap: GroupGap }
  | {
      readonly what: 'begin' | 'end' | 'fail';
      readonly partition: number;
      readonly offset: number;
      readonly deliveries: number;
      readonly key: string;
    }
);

/** `npm run build` first: it runs what was built. */
export class MemberProcess implements AsyncDisposable {
  readonly #child: Child;

  constructor(readonly settings: MemberSettings) {
    this.#child = new Child(process.execPath, { args: [PROGRAM, JSON.stringify(settings)] });
  }

  get name(): string {
    return this.settings.name;
  }

  /** Of one that ended unasked. */
  get output(): string {
    return this.#child.tail();
  }

  get isRunning(): boolean {
    return this.#child.isRunning;
  }

  signal(signal: 'SIGSTOP' | 'SIGCONT' | 'SIGKILL' | 'SIGTERM'): void {
    this.#child.signal(signal);
  }

  /** Resolves when it is gone. */
  async ended(): Promise<void> {
    await this.#child.exit;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#child.kill();
  }
}

/** All lines; of one that is being written nothing yet. */
export function readNotes(ledger: string): readonly Note[] {
  return readFileSync(ledger, 'utf8')
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line) as Note);
}
