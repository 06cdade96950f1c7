import type { Socket } from 'socket.io';
import { fullJitter } from '../../core/backoff.js';
import { ERROR_CODES, type RelayError } from '../../core/errors.js';
import { sleep } from '../../core/sleep.js';
import { Outbox } from '../outbox.js';
import { closedSignal, introduce } from './socket-internals.js';

/** The longest that a client is held: a stock one counts its back-off anew at every transport that opened. */
const MAX_HOLD_MS = 10_000;
/** Of a client whose token, or whose status, nobody can verify now. */
const UNAVAILABLE_MS = 5000;

/** What a client may ask while it is held: a stock one sends what it had kept for its connect. */
const MAX_ASKED = 500;

export type RefusalReason = 'session_settle' | 'flap' | 'reconnect' | 'unavailable';

/**
 * A refusal that a client should hear of and come back from, which it would not after a CONNECT_ERROR. CONNECT is written,
 * without rooms, record or position, and then the reason.
 */
export class Refusal extends Error {
  constructor(
    readonly reason: RefusalReason,
    private readonly event: string,
    private readonly payload: object,
    /** How long the connection is held before its transport is closed; undefined: its client is not to come back. */
    private readonly holdMs: number | undefined,
  ) {
    super(`refused for now: ${reason}`);
  }

  static throttled(reason: 'session_settle' | 'flap' | 'reconnect', retryAfterMs: number): Refusal {
    const payload = { reason, retry_after_ms: Math.ceil(retryAfterMs) };
    return new Refusal(reason, 'device:throttled', payload, reason === 'session_settle' ? undefined : retryAfterMs);
  }

  static unavailable({ code, message, retryable: reconnect }: RelayError): Refusal {
    const holdMs = 1000 + fullJitter(0, UNAVAILABLE_MS, UNAVAILABLE_MS);
    return new Refusal('unavailable', 'holdfast:closing', { code, reason: message, reconnect }, holdMs);
  }

  /** Before CONNECT is written. A client that brought a `pid` keeps it, or what it missed would be lost with it. */
  prepare(socket: Socket, pid: string | undefined): void {
    if (pid !== undefined) introduce(socket, pid, false);
  }

  /** After CONNECT. Resolves when the connection has been closed. */
  async turnAway(socket: Socket, slots: HoldSlots): Promise<void> {
    const closed = closedSignal(socket);
    const outbox = new Outbox(socket);
    outbox.emit(this.event, this.payload);
    let asked = 0;
    socket.onAny((...args: unknown[]) => {
      if (++asked > MAX_ASKED) outbox.cut();
      else answer(args.at(-1));
    });
    if (this.holdMs === undefined) {
      socket.disconnect(true);
      return;
    }
    if (slots.take()) {
      await sleep(Math.min(this.holdMs, MAX_HOLD_MS), closed);
      slots.free();
    }
    outbox.closeTransport();
  }
}

/** Whoever asks something meanwhile hears that it can be asked again. */
function answer(ack: unknown): void {
  if (typeof ack !== 'function') return;
  ack({ ok: false, error: ERROR_CODES.unavailable.text, code: 'unavailable', retryable: true });
}

/** At most so many clients are held; whoever is over that is closed at once. */
export class HoldSlots {
  #taken = 0;

  constructor(private readonly count: number) {}

  take(): boolean {
    if (this.#taken >= this.count) return false;
    this.#taken++;
    return true;
  }

  free(): void {
    this.#taken--;
  }
}
