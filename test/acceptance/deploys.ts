import { type Client, open } from '../harness/client.js';
import { startHaproxy } from '../harness/haproxy.js';
import { checkLedger, type Ledger } from '../harness/ledger.js';
import { type Pod, spawnPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { httpSender, Load, socketSender } from './load.js';

const ROOMS = 5;

export interface DeployOptions {
  readonly pods: number;
  readonly clients: number;
  readonly httpPerSecond: number;
  readonly socketPerSecond: number;
  /** Between two faults, ms. */
  readonly calmMs: number;
  /** From a pod's kill to its start; default 3 s. */
  readonly downMs?: number;
  /** Longer than a pod's lease; default 8 s. */
  readonly pausedMs?: number;
  /** In turn, or, by default, each pod both ways. */
  readonly eachPod?: 'terminated or killed' | 'terminated and killed';
  readonly rounds: number;
}

/** What happened to those who were not on the pod that a fault hit. */
export interface Fault {
  readonly name: string;
  readonly pod: string;
  /** Sockets on that pod. */
  readonly hit: number;
  /** Clients that saw a disconnect. */
  readonly disconnected: number;
  /** The longest that any other client waited between two events, ms. */
  readonly bystanderPauseMs: number;
}

export interface DeployResult {
  readonly ledger: Ledger;
  readonly faults: readonly Fault[];
  /** Events whose first attempt was refused or had no answer, outside the Redis restart. */
  readonly refusedOutsideRestart: number;
  readonly offeredOutsideRestart: number;
  readonly longestRefusalOutsideRestartMs: number;
  readonly deliveries: number;
  readonly seconds: number;
  readonly groupReadShare: number;
}

const wait = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * Pods behind haproxy, stock clients, a steady load through the HTTP API and through sockets; meanwhile, one at a time and each
 * pod back before the next: SIGTERM, SIGKILL, SIGSTOP for longer than a lease, a restart of Redis.
 */
export async function runDeploys(options: DeployOptions): Promise<DeployResult> {
  const { downMs = 3000, pausedMs = 8000, eachPod = 'terminated and killed' } = options;
  const startedAt = performance.now();
  // with everysec a killed Redis may forget what it acknowledged: another test shows that every such loss is told
  await using redis = await startRedis({ aof: 'always' });
  const pods: Pod[] = [];
  const clients: Client[] = [];
  try {
    for (let n = 0; n < options.pods; n++)
      pods.push(await spawnPod({ redisUrl: redis.url, name: `pod-${n}`, env: { HOLDFAST_DRAIN_MS: '2000' } }));
    await Promise.all(pods.map((pod) => pod.ready()));
    const backends = pods.map(({ port, opsPort }) => ({ host: '127.0.0.1', port, opsPort }));
    await using haproxy = await startHaproxy({ backends, balance: 'leastconn' });
    await eventually(async () => (await haproxy.up()).every(Boolean), {
      withinMs: 10_000,
      what: 'all pods up at haproxy',
    });

    for (let n = 0; n < options.clients; n++)
      clients.push(open(haproxy.url, { token: await token({ sub: `user-${n}`, caps: ALL_CAPS }) }));
    const enter = async (client: Client, n: number): Promise<void> => {
      await client.connected();
      for (const room of ['all', `room-${n % ROOMS}`]) {
        const ack = await client.subscribe(room);
        if (!ack.ok) throw new Error(`subscribe failed: ${JSON.stringify(ack)}`);
      }
    };
    await Promise.all(clients.map(enter));
    const roomOf = (n: number): string => (n % 2 === 0 ? 'all' : `room-${n % ROOMS}`);
    const loads = [
      new Load('http', options.httpPerSecond, roomOf, httpSender(haproxy.url)),
      new Load('socket', options.socketPerSecond, roomOf, socketSender(clients.slice(0, 10))),
    ];

    const faults: Fault[] = [];
    const restarts: { from: number; to: number }[] = [];
    const allBack = async (): Promise<void> => {
      await eventually(async () => (await haproxy.up()).every(Boolean), { withinMs: 30_000, what: 'all pods back' });
      await eventually(() => clients.every(({ socket }) => socket.connected), {
        withinMs: 30_000,
        what: 'all clients back',
      });
      // everybody moved to the other pods: half of them come back
      clients.forEach((client, n) => {
        if (n % 2 === 0) client.cut();
      });
      await eventually(() => clients.every(({ socket }) => socket.connected), {
        withinMs: 30_000,
        what: 'all clients back',
      });
      await wait(options.calmMs);
    };
    const hit = async (name: string, pod: Pod, work: () => Promise<void>): Promise<void> => {
      const before = (await pod.metrics()).get('holdfast_connections') ?? Number.NaN;
      const from = Date.now();
      await work();
      const to = Date.now();
      const disconnected = clients.filter(({ disconnects }) => disconnects.some(({ at }) => at >= from && at <= to));
      const others = clients.filter((client) => !disconnected.includes(client));
      const pauses = others.map((client) => longestPause(client, from, to));
      faults.push({
        name,
        pod: pod.name,
        hit: before,
        disconnected: disconnected.length,
        bystanderPauseMs: Math.max(0, ...pauses),
      });
    };

    const terminate = async (pod: Pod): Promise<void> => {
      await hit('SIGTERM', pod, async () => {
        const exit = await pod.sigterm();
        if (exit.code !== 0) throw new Error(`${pod.name} left with ${exit.code ?? exit.signal} after SIGTERM`);
        await pod.start();
      });
      await allBack();
    };
    const kill = async (pod: Pod): Promise<void> => {
      await hit('SIGKILL', pod, async () => {
        await pod.sigkill();
        // others are watched without the noise of a starting process
        await wait(downMs);
      });
      await pod.start();
      await allBack();
    };

    await wait(options.calmMs);
    for (let round = 0; round < options.rounds; round++) {
      for (const [n, pod] of pods.entries()) {
        const isBoth = eachPod === 'terminated and killed';
        if (isBoth || n % 2 === 0) await terminate(pod);
        if (isBoth || n % 2 === 1) await kill(pod);
      }
      const paused = pods[round % pods.length] as Pod;
      await hit(`SIGSTOP ${pausedMs / 1000} s`, paused, async () => {
        paused.pause();
        await wait(pausedMs);
        paused.resume();
      });
      await allBack();
      const from = Date.now();
      await redis.restart();
      await wait(1000);
      restarts.push({ from: from - 2000, to: Date.now() + 3000 });
      await allBack();
    }

    await Promise.all(loads.map((load) => load.stop()));
    const offers = loads.flatMap(({ offers: made }) => made);
    const expected = new Map<string, number>();
    for (const { room, attempts } of offers) {
      if (attempts.some(({ outcome }) => outcome.kind === 'accepted'))
        expected.set(room, (expected.get(room) ?? 0) + 1);
    }
    const dueTo = (n: number): number => (expected.get('all') ?? 0) + (expected.get(`room-${n % ROOMS}`) ?? 0);
    await eventually(() => clients.every(({ received }, n) => received.length >= dueTo(n)), {
      withinMs: 30_000,
      what: 'the last deliveries',
    }).catch(() => {});

    const subscribers = clients.map((client, n) => client.account(`client-${n}`));
    const ledger = checkLedger({ offers, subscribers });
    const outside = offers.filter(({ attempts: [first] }) => {
      const at = first?.startedAt ?? 0;
      return !restarts.some(({ from, to }) => at >= from && at <= to);
    });
    const isRefused = ({ attempts: [first] }: (typeof offers)[number]): boolean => first?.outcome.kind !== 'accepted';
    const waits = outside
      .filter(isRefused)
      .map(({ attempts }) => (attempts.at(-1)?.endedAt ?? 0) - (attempts[0]?.startedAt ?? 0));
    const reads = { group: 0, plain: 0 };
    for (const pod of pods) {
      const metrics = await pod.metrics();
      for (const mode of ['group', 'plain'] as const)
        reads[mode] += metrics.get(`holdfast_log_reads_total{mode="${mode}"}`) ?? 0;
    }
    return {
      ledger,
      faults,
      refusedOutsideRestart: outside.filter(isRefused).length,
      offeredOutsideRestart: outside.length,
      longestRefusalOutsideRestartMs: Math.max(0, ...waits),
      deliveries: clients.reduce((sum, { received }) => sum + received.length, 0),
      seconds: (performance.now() - startedAt) / 1000,
      groupReadShare: reads.group / Math.max(1, reads.group + reads.plain),
    };
  } finally {
    await Promise.all(clients.map((client) => client.stop()));
    await Promise.all(pods.map((pod) => pod.stop()));
  }
}

function longestPause({ received }: Client, from: number, to: number): number {
  let last = from;
  let longest = 0;
  for (const { receivedAt } of received) {
    if (receivedAt < from || receivedAt > to) continue;
    longest = Math.max(longest, receivedAt - last);
    last = receivedAt;
  }
  return Math.max(longest, to - last);
}
