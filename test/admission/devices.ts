import { sleep } from '../../src/core/sleep.js';
import { ask } from '../gateway/fixture.js';
import { type Client, connect, open } from '../harness/client.js';
import type { Pod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import type { AdmissionRig } from './rig.js';

let people = 0;

/** A device of a user of its own, so that tests share pods and nothing else. */
export interface TestDevice {
  readonly user: string;
  readonly jwt: string;
}

export async function someDevice(): Promise<TestDevice> {
  const user = `user-${++people}`;
  return { user, jwt: await token({ sub: user, device: 'screen', caps: ALL_CAPS }) };
}

/** `device:throttled`, `holdfast:closing`: what a client heard of its end, in short. */
export function fateOf(client: Client): string | undefined {
  for (const { event, args } of client.control) {
    const { reason, code } = args[0] as { reason?: string; code?: string };
    if (event === 'device:throttled') return reason;
    if (event === 'holdfast:closing') return code;
  }
  return undefined;
}

/** In, and not about to leave. */
export const isIn = (client: Client): boolean =>
  client.socket.connected && client.positions.length > 0 && !fateOf(client);

/** Knows its fate: in, or told why not. */
export async function settled(client: Client): Promise<Client> {
  await eventually(() => isIn(client) || fateOf(client) !== undefined, { what: 'a client to know where it is' });
  return client;
}

/** Asks a pod again and again whether the user is online. */
function watchOnline(pod: Pod, user: string) {
  const seen = { asked: 0, offline: 0 };
  const over = new AbortController();
  const watching = (async () => {
    while (!over.signal.aborted) {
      const { body } = await ask(pod, 'GET', `/v1/presence/${user}`);
      seen.asked++;
      if (!body.devices.some(({ device }: { device?: string }) => device === 'screen')) seen.offline++;
      await sleep(30, over.signal);
    }
  })();
  const stop = async () => {
    over.abort();
    await watching;
    return seen;
  };
  return { stop, [Symbol.asyncDispose]: async () => void (await stop()) };
}

async function dismiss(clients: readonly Client[]): Promise<void> {
  await Promise.all(clients.map((client) => client.stop()));
}

export interface FightFigures {
  readonly seconds: number;
  readonly takeovers: number;
  readonly asked: number;
  readonly offline: number;
  /** Connections that the device has at the end. */
  readonly sockets: number;
}

/** Two clients of one device, on two pods, each of which comes again whenever it is sent away. */
export async function deviceFight(rig: AdmissionRig, forMs: number, againMs: number): Promise<FightFigures> {
  const { user, jwt } = await someDevice();
  let takeovers = 0;
  const fighters = rig.pods.slice(0, 2).map(({ url }) => open(url, { token: jwt }));
  for (const { socket } of fighters) {
    socket.on('holdfast:closing', ({ code }) => {
      if (code === 'session_replaced') takeovers++;
    });
    socket.on('disconnect', () => setTimeout(() => socket.connected || socket.connect(), againMs));
  }
  await eventually(() => fighters.some(isIn), { what: 'one of them to be in' });
  await using online = watchOnline(rig.pods[0] as Pod, user);
  await sleep(forMs);
  const { asked, offline } = await online.stop();
  const { body } = await ask(rig.pods[1] as Pod, 'GET', `/v1/presence/${user}`);
  for (const { socket } of fighters) socket.removeAllListeners('disconnect');
  await dismiss(fighters);
  return { seconds: forMs / 1000, takeovers, asked, offline, sockets: body.devices[0]?.sockets ?? 0 };
}

export interface StormOptions {
  /** Sockets that come one after another, and the time between two. */
  readonly calm: number;
  readonly everyMs: number;
  /** Sockets that come after them, spread over `burstMs`. */
  readonly burst: number;
  readonly burstMs: number;
}

export interface StormFigures {
  /** Sockets that are the device's session at the end. */
  readonly authoritative: number;
  readonly asked: number;
  readonly offline: number;
  /** What became of the others, by reason. */
  readonly fates: Readonly<Record<string, number>>;
  /** Of the worst pod, in ms. */
  readonly loopDelayP99: number;
}

/** Sockets of one device, one after another and then many, over all pods of the rig; somebody asks all the time whether it is online. */
export async function deviceStorm(rig: AdmissionRig, options: StormOptions): Promise<StormFigures> {
  const { calm, everyMs, burst, burstMs } = options;
  const { user, jwt } = await someDevice();
  const podOf = (index: number): Pod => rig.pods[index % rig.pods.length] as Pod;
  const come = (index: number) => settled(open(podOf(index).url, { token: jwt, reconnectionDelayMs: 60_000 }));
  const delays = () =>
    Promise.all(
      rig.pods.map(async (pod) => (await pod.metrics()).get('holdfast_event_loop_delay_seconds{stat="p99"}') ?? 0),
    );
  const all = [await settled(await connect(podOf(0).url, { token: jwt }))];
  await using online = watchOnline(podOf(2), user);
  await delays();
  for (let index = 1; index < calm; index++) {
    await sleep(everyMs);
    all.push(await come(index));
  }
  const coming = Array.from({ length: burst }, async (_, index) => {
    await sleep((index * burstMs) / burst);
    return come(index);
  });
  all.push(...(await Promise.all(coming)));
  const loopDelayP99 = Math.round(1000 * Math.max(...(await delays())));
  const { asked, offline } = await online.stop();
  const fates: Record<string, number> = {};
  for (const client of all) {
    const fate = fateOf(client) ?? (isIn(client) ? 'in' : 'nothing');
    fates[fate] = (fates[fate] ?? 0) + 1;
  }
  await dismiss(all);
  return { authoritative: fates.in ?? 0, asked, offline, fates, loopDelayP99 };
}
