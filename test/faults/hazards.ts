import type { Socket } from 'node:net';
import { expect } from 'vitest';
import { ask } from '../gateway/fixture.js';
import type { RawClient } from '../gateway/raw-client.js';
import type { Attempt, Offer, Subscriber } from '../harness/ledger.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';

/** Lets a connection through at a rate, as a thin link does; returns what ends that. */
export function throttle(socket: Socket, bytesPerSecond: number): () => void {
  const startedAt = performance.now();
  let bytes = 0;
  let timer: NodeJS.Timeout | undefined;
  const wait = (chunk: Buffer): void => {
    bytes += chunk.length;
    const aheadMs = (1000 * bytes) / bytesPerSecond - (performance.now() - startedAt);
    if (aheadMs <= 0) return;
    socket.pause();
    timer = setTimeout(() => socket.resume(), aheadMs);
  };
  socket.on('data', wait);
  return () => {
    clearTimeout(timer);
    socket.off('data', wait);
    socket.resume();
  };
}

/** An application's event as a raw client got it. */
export interface Frame {
  readonly data: unknown;
  readonly id: string;
  readonly room: string;
  readonly position: string | undefined;
}

/** All events named `e` that a raw client got, in order. */
export function framesOf({ texts }: RawClient): Frame[] {
  return texts
    .filter((text) => text.startsWith('42["e",'))
    .map((text) => {
      const [, data, meta, position] = JSON.parse(text.slice(2)) as [string, unknown, Omit<Frame, 'data'>, string?];
      return { data, id: meta.id, room: meta.room, position };
    });
}

/** Resolves when the event with this id is there. Looks at the frames' ends only: they may be large. */
export function arrival({ texts }: RawClient, id: string, withinMs = 20_000): Promise<void> {
  const end = `"id":${JSON.stringify(id)}`;
  return eventually(() => texts.some((text) => text.includes(end, text.length - 500)), { withinMs, what: id });
}

/** For `checkLedger`. */
export function accountOf(name: string, client: RawClient, subscriptions: Subscriber['subscriptions']): Subscriber {
  const gaps = client.texts
    .filter((text) => text.startsWith('42["holdfast:gap",'))
    .map((text) => JSON.parse(text.slice(2))[1]);
  return { name, subscriptions, deliveries: framesOf(client), gaps };
}

/** Publishes one event over HTTP, and says what came of it. */
export async function offer(pod: Pod, room: string, id: string, data: unknown = id): Promise<Offer> {
  const startedAt = Date.now();
  const { body } = await ask(pod, 'POST', '/v1/publish', { body: { room, event: 'e', data, id } });
  const attempt: Attempt = {
    outcome: typeof body.position === 'string' ? { kind: 'accepted', position: body.position } : { kind: 'unknown' },
    startedAt,
    endedAt: Date.now(),
  };
  return { id, room, attempts: [attempt] };
}

/** It runs, and nothing was thrown in it that nobody caught. */
export function expectSound(pod: Pod): void {
  const faults = pod.logs.filter(
    (line) => !line.startsWith('{') || /"event":"(unhandled_rejection|uncaught_exception|dispatch_error)"/.test(line),
  );
  expect({ isRunning: pod.isRunning, faults }).toEqual({ isRunning: true, faults: [] });
}
