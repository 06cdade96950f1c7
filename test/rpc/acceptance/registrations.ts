import { io, type Socket } from 'socket.io-client';
import { sleep } from '../../../src/core/sleep.js';
import { eventually } from '../../harness/poll.js';
import { CallLoad, type Told, tally } from '../../harness/rpc-calls.js';
import { type RpcRig, someone } from '../../harness/rpc-rig.js';
import { ALL_CAPS, token } from '../../harness/token.js';

type Tally = Readonly<Record<string, number>>;

/** The eight ways of registering that once failed in somebody's application. Each returns how its calls ended. */
export const SCENARIOS: readonly {
  readonly name: string;
  readonly run: (rig: RpcRig) => Promise<Tally>;
}[] = [
  { name: 'register without waiting for the ack, and call at once', run: (rig) => callAfter(rig, [0, 0, 0]) },
  {
    name: 'callers that come 0 to 2,000 ms after the registration was sent',
    run: (rig) => callAfter(rig, [0, 50, 100, 200, 500, 1000, 2000]),
  },
  { name: 'five reconnects without waiting for acks', run: reconnectsWithoutAcks },
  { name: 'ten daemons that connect in parallel', run: (rig) => connectInParallel(rig, 10) },
  { name: 'thirty daemons over the pods while one of these is killed', run: killAmongThirty },
  { name: 'a machine’s RPC that starts a session, and then an RPC of that session', run: startSession },
  { name: 'fifty daemons that register at once under calls', run: registerUnderCalls },
  { name: 'caller and daemon on each pair of pods', run: everyPair },
];

/** A socket that registers `work` in the tick in which it connects, and answers with what it got. */
async function serve(rig: RpcRig, sub: string): Promise<Socket> {
  const socket = io(rig.haproxy.url, {
    auth: { token: await token({ sub, caps: ALL_CAPS }) },
    transports: ['websocket'],
    forceNew: true,
    reconnectionDelay: 100,
    randomizationFactor: 0,
  });
  rig.owns({ [Symbol.asyncDispose]: async () => void socket.disconnect() });
  socket.on('connect', () => socket.emit('rpc-register', { method: 'work' }));
  socket.on('rpc-request', (request, ack) => {
    rig.book.noteRun(request);
    ack(request.params);
  });
  return socket;
}

/** Calls that may wait for a first registration, as such an application's must. */
const WAITS = { waitForWorkerMs: 2000, params: { isEchoed: true } };

async function callAfter(rig: RpcRig, delays: readonly number[]): Promise<Tally> {
  const callerOn = await rig.callerPerPod();
  const told = await Promise.all(
    delays.map(async (delay, n) => {
      const user = someone('machine');
      const socket = await serve(rig, user);
      await new Promise<void>((resolve) => socket.once('connect', resolve));
      await sleep(delay);
      const pod = rig.pods[n % rig.pods.length];
      if (!pod) throw new Error('no pod');
      return callerOn(pod).call('work', { user, ...WAITS });
    }),
  );
  return tally(told);
}

async function reconnectsWithoutAcks(rig: RpcRig): Promise<Tally> {
  const user = someone('machine');
  const socket = await serve(rig, user);
  const caller = await rig.caller();
  const told = [await caller.call('work', { user, ...WAITS })];
  for (let n = 0; n < 5; n++) {
    const connected = new Promise<void>((resolve) => socket.once('connect', resolve));
    socket.io.engine.close();
    await connected;
    told.push(...(await Promise.all([1, 2, 3].map(() => caller.call('work', { user })))));
  }
  return tally(told);
}

async function connectInParallel(rig: RpcRig, count: number): Promise<Tally> {
  const users = Array.from({ length: count }, () => someone('machine'));
  const { daemon } = await rig.daemon({ users });
  await daemon.registered();
  const callerOn = await rig.callerPerPod();
  const told = await Promise.all(rig.pods.flatMap((pod) => users.map((user) => callerOn(pod).call('work', { user }))));
  return tally(told);
}

async function killAmongThirty(rig: RpcRig): Promise<Tally> {
  const users = Array.from({ length: 30 }, () => someone('machine'));
  await rig.daemon({ users, kind: 'instance' });
  const callerOn = await rig.callerPerPod();
  const [pod, near, far] = rig.pods;
  if (!pod || !near || !far) throw new Error('three pods');
  const load = new CallLoad(20, (n) =>
    callerOn(n % 2 === 0 ? near : far).call('work', { user: users[n % 30] as string, ms: 50 }),
  );
  await eventually(() => load.made >= 25, { what: 'calls before the kill' });
  await pod.sigkill();
  await eventually(() => load.made > 150, { what: 'calls after the kill' });
  const told = await load.stop();
  await rig.startAgain(pod);
  return tally(told);
}

async function startSession(rig: RpcRig): Promise<Tally> {
  const machine = someone('machine');
  const host = await serve(rig, machine);
  host.off('rpc-request');
  host.on('rpc-request', async (request, ack) => {
    rig.book.noteRun(request);
    const { params } = request;
    const session = await serve(rig, params.session);
    session.once('rpc-registered', () => ack({ key: params.key }));
  });
  const callerOn = await rig.callerPerPod();
  const told: Told[] = [];
  for (let round = 0; round < 5; round++)
    for (const pod of rig.pods) {
      const session = someone('session');
      told.push(await callerOn(pod).call('work', { user: machine, waitForWorkerMs: 2000, params: { session } }));
      told.push(await callerOn(pod).call('work', { user: session }));
    }
  return tally(told);
}

async function registerUnderCalls(rig: RpcRig): Promise<Tally> {
  const steady = await rig.daemonPerPod({ kind: 'raw' });
  const callerOn = await rig.callerPerPod();
  const load = new CallLoad(15, (n) => {
    const [from, to] = [rig.pods[n % 3], rig.pods[(n >> 1) % 3]];
    if (!from || !to) throw new Error('three pods');
    return callerOn(from).call('work', { user: steady.userOn(to) });
  });
  const told = await connectInParallel(rig, 50);
  const loaded = tally(await load.stop());
  return Object.fromEntries(
    [...new Set([...Object.keys(told), ...Object.keys(loaded)])].map((word) => [
      word,
      (told[word] ?? 0) + (loaded[word] ?? 0),
    ]),
  );
}

async function everyPair(rig: RpcRig): Promise<Tally> {
  const daemons = await rig.daemonPerPod({ kind: 'raw' });
  const callerOn = await rig.callerPerPod();
  const told = await Promise.all(
    rig.pods.flatMap((from) =>
      rig.pods.flatMap((to) =>
        Array.from({ length: 20 }, () => callerOn(from).call('work', { user: daemons.userOn(to) })),
      ),
    ),
  );
  return tally(told);
}
