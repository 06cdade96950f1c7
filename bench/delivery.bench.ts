import { fileURLToPath } from 'node:url';
import { io, type Socket } from 'socket.io-client';
import { it } from 'vitest';
import { httpPublish } from '../test/acceptance/http.js';
import { Child } from '../test/harness/child.js';
import { cpuSeconds } from '../test/harness/cpu.js';
import { freePort } from '../test/harness/free-port.js';
import { startPod } from '../test/harness/pod.js';
import { eventually } from '../test/harness/poll.js';
import { startRedis } from '../test/harness/redis.js';
import { ALL_CAPS, token } from '../test/harness/token.js';

const SOCKETS = 50;
const DATA = 'x'.repeat(200);
const RUNS = [
  { name: 'burst', count: 4000, perSecond: 1_000_000 },
  { name: '1,000/s', count: 5000, perSecond: 1000 },
  { name: '300/s', count: 1500, perSecond: 300 },
];
const ROUNDS = 3;

/** One side of the comparison: events are published on one process, and delivered to 50 sockets by another, whose CPU counts. */
interface Side {
  readonly name: string;
  readonly pid: number;
  readonly sockets: readonly Socket[];
  publish(count: number, perSecond: number): Promise<void>;
}

async function measure(side: Side, { count, perSecond }: (typeof RUNS)[number]): Promise<number> {
  let received = 0;
  const onTick = (): void => {
    received++;
  };
  for (const socket of side.sockets) socket.on('tick', onTick);
  const from = await cpuSeconds(side.pid);
  await side.publish(count, perSecond);
  await eventually(() => received >= count * SOCKETS, { withinMs: 120_000, what: `${side.name}: all deliveries` });
  const used = (await cpuSeconds(side.pid)) - from;
  for (const socket of side.sockets) socket.off('tick', onTick);
  return (used * 1e6) / (count * SOCKETS);
}

const median = (values: readonly number[]): number => [...values].sort((a, b) => a - b)[values.length >> 1] as number;

async function connected(url: string, auth: object): Promise<Socket[]> {
  const sockets = Array.from({ length: SOCKETS }, () => io(url, { transports: ['websocket'], forceNew: true, auth }));
  await eventually(() => sockets.every((socket) => socket.connected), { withinMs: 20_000, what: 'all sockets' });
  return sockets;
}

it('CPU per delivery against Socket.IO with the streams adapter', async () => {
  await using redis = await startRedis({ aof: 'off' });
  const peer = async (): Promise<{ child: Child; url: string }> => {
    const port = await freePort();
    const child = new Child(process.execPath, {
      args: [fileURLToPath(new URL('peer.mjs', import.meta.url)), redis.url, String(port)],
    });
    const url = `http://127.0.0.1:${port}`;
    await eventually(async () => (await fetch(url)).ok, { withinMs: 10_000, what: 'a peer' });
    return { child, url };
  };
  const [peerA, peerB] = [await peer(), await peer()];
  await using a = await startPod({ redisUrl: redis.url, name: 'a' });
  await using b = await startPod({ redisUrl: redis.url, name: 'b' });
  const ours = await connected(a.url, { token: await token({ sub: 'u', caps: ALL_CAPS }) });
  for (const socket of ours) await socket.emitWithAck('subscribe', { room: 'news' });
  const theirs = await connected(peerA.url, {});
  const sides: Side[] = [
    {
      name: 'streams adapter',
      pid: peerA.child.pid,
      sockets: theirs,
      publish: async (count, perSecond) => {
        await fetch(`${peerB.url}/emit?count=${count}&perSecond=${perSecond}&data=${DATA}`);
      },
    },
    {
      name: 'holdfast',
      pid: a.pid,
      sockets: ours,
      publish: async (count, perSecond) => {
        const startedAt = performance.now();
        const size = perSecond > 2000 ? 100 : Math.max(1, Math.round(perSecond / 500));
        const pending: Promise<unknown>[] = [];
        for (let sent = 0; sent < count; ) {
          const due = Math.min(count, ((performance.now() - startedAt) * perSecond) / 1000);
          for (; sent + size <= due; sent += size)
            pending.push(
              httpPublish(
                b.url,
                Array.from({ length: size }, () => ({ room: 'news', event: 'tick', data: DATA })),
              ),
            );
          if (pending.length > 20) await Promise.all(pending.splice(0));
          await new Promise((resolve) => setTimeout(resolve, 2));
        }
        await Promise.all(pending);
      },
    },
  ];
  try {
    for (const run of RUNS) {
      const costs: Record<string, number[]> = Object.fromEntries(sides.map(({ name }) => [name, []]));
      // interleaved, so that both see the same machine
      for (let round = 0; round < ROUNDS; round++)
        for (const side of sides) costs[side.name]?.push(await measure(side, run));
      const [theirCost, ourCost] = sides.map(({ name }) => median(costs[name] as number[])) as [number, number];
      console.log(
        `${run.name}: CPU µs per delivery, ${SOCKETS} sockets: streams adapter ${theirCost.toFixed(1)}, holdfast ${ourCost.toFixed(1)}, ratio ${(ourCost / theirCost).toFixed(2)}`,
      );
    }
  } finally {
    for (const socket of [...ours, ...theirs]) socket.disconnect();
    await Promise.all([peerA.child.kill(), peerB.child.kill()]);
  }
});
