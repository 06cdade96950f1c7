import { setImmediate, setTimeout } from 'node:timers/promises';
import { nowUs } from './answer.mjs';

/** What a publisher in a hurry emits before its own event loop has its turn. */
const BURST_SLICE = 100;

/**
 * Calls `emit(from, to)` for the events of a plan as they become due: evenly, or at `Infinity` per second as fast as it goes.
 * When the first was due, in µs.
 */
export async function pace(count, perSecond, emit) {
  const startedAt = nowUs();
  for (let sent = 0; sent < count; ) {
    const elapsed = (nowUs() - startedAt) / 1e6;
    const due = Math.min(count, perSecond === Infinity ? sent + BURST_SLICE : Math.ceil(elapsed * perSecond));
    if (due > sent) await emit(sent, due);
    sent = due;
    if (perSecond === Infinity) await setImmediate();
    else await setTimeout(Math.max(1, (sent / perSecond - elapsed) * 1000));
  }
  return { startedAt };
}
