import type { RedisClock } from '../../redis/clock.js';
import type { Connection } from '../../redis/connect.js';
import type { Keys } from '../../redis/keys.js';
import { loadScript } from '../../redis/script.js';
import type { Held } from './places.js';
import { ASK_MS } from './reach.js';
import { COOL_DOWN_MS, LIFE_MS, type SessionSettings } from './settings.js';
import type { SessionVerdict } from './verdict.js';

const DECIDE = loadScript(import.meta.url, 'decide');
const LEAVE = loadScript(import.meta.url, 'leave');
const ASSERT = loadScript(import.meta.url, 'assert');

export interface LedgerOptions {
  readonly connection: Connection;
  readonly keys: Keys;
  readonly settings: SessionSettings;
  readonly clock: RedisClock;
  /** The cluster is warming up: more reconnects are let through. */
  readonly isWarmingUp: () => boolean;
}

export interface Wish {
  readonly held: Held;
  readonly isPaired: boolean;
  /** Id of a holder, or ''. */
  readonly provedDead: string;
}

/** What Redis made of an assertion. */
export interface Asserted {
  readonly isHeld: boolean;
  readonly at: number;
  /** Who lost it, or who holds it; or ''. */
  readonly other: string;
  readonly wasHeld: boolean;
}

/** The devices' sessions in Redis. Every method is one script of one device, and rejects when Redis can't run it. */
export class Ledger {
  constructor(private readonly options: LedgerOptions) {}

  /** `'late'`: Redis got to it too late, and did nothing. */
  async decide({ held, isPaired, provedDead }: Wish): Promise<SessionVerdict | 'late'> {
    const { connection, keys, settings, clock, isWarmingUp } = this.options;
    const session = keys.session(held.scope);
    const { reconnectMax, warmupMax } = settings;
    // 0 is off, also in the warm-up
    const maxWarm = reconnectMax === 0 || warmupMax === 0 ? 0 : Math.max(reconnectMax, warmupMax);
    const args = [
      held.holder.id,
      isPaired ? '1' : '',
      clock.isKnown ? clock.at() + ASK_MS : '',
      provedDead,
      settings.settleMs,
      settings.loopMs,
      settings.flapMax,
      settings.flapMs,
      COOL_DOWN_MS,
      isWarmingUp() ? maxWarm : reconnectMax,
      settings.reconnectMs,
      Math.max(maxWarm, reconnectMax),
      LIFE_MS,
    ];
    const reply = await connection.run(DECIDE, [session.holder, session.flaps, session.reconnects], args);
    const [decision, waitMs, now, holder, at] = reply as [string, number, number, string, number];
    clock.learn(now);
    switch (decision) {
      case 'admit':
      case 'takeover':
        return { is: 'taken', at, from: decision === 'takeover' ? holder : '' };
      case 'settle':
      case 'loop':
        return { is: 'contested', by: decision, holder, waitMs };
      case 'flap':
      case 'throttle':
        return { is: 'limited', by: decision, waitMs };
      default:
        return 'late';
    }
  }

  /** Compare-and-delete. */
  async leave(scope: string, holderId: string): Promise<boolean> {
    const { connection, keys, settings } = this.options;
    const args = [holderId, Math.max(settings.loopMs, 1)];
    return (await connection.run(LEAVE, [keys.session(scope).holder], args)) === 1;
  }

  /** The newest admission wins. */
  async assert({ scope, holder, at, admittedAt }: Held, provedDead = ''): Promise<Asserted> {
    const { connection, keys, clock } = this.options;
    const args = [holder.id, at ?? clock.at(admittedAt), LIFE_MS, provedDead];
    const reply = await connection.run(ASSERT, [keys.session(scope).holder], args);
    const [isHeld, since, other, wasHeld] = reply as [number, number, string, number];
    return { isHeld: isHeld === 1, at: since, other, wasHeld: wasHeld === 1 };
  }

  /** Id of who holds it, or ''. */
  async holderOf(scope: string): Promise<string> {
    const { connection, keys } = this.options;
    return (await connection.redis.hget(keys.session(scope).holder, 'id')) ?? '';
  }
}
