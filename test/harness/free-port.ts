import { createServer } from 'node:net';

/**
 * Below Linux's ephemeral range (32768–60999), where listen(0) would pick. A port that must stay ours while nobody
 * listens on it (a killed Redis, a refusing proxy) is not safe in that range: any outgoing connection may get it as its
 * source, and a client that retries such a port on loopback sooner or later connects to itself.
 */
const FIRST = 12_000;
const LAST = 31_999;

/**
 * Vitest's workers run beside each other, and a worker knows only what it gave itself: so each gives from a share of its
 * own, or a pod that is down for a moment finds its port taken by the other worker.
 */
const SHARES = 4;
const WIDTH = Math.floor((LAST - FIRST + 1) / SHARES);
const OWN_FIRST = FIRST + WIDTH * (Number(process.env.VITEST_POOL_ID ?? 0) % SHARES);

const given = new Set<number>();

/** A port of 127.0.0.1 on which nobody listens, never the same one twice in a process. */
export async function freePort(): Promise<number> {
  for (let tries = 0; tries < 1000; tries++) {
    const port = OWN_FIRST + Math.floor(Math.random() * WIDTH);
    if (given.has(port) || !(await canListen(port))) continue;
    given.add(port);
    return port;
  }
  throw new Error('no free port found');
}

function canListen(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
