// Daemons of somebody's, one stock socket.io-client each. The first line of stdin is their settings (`DaemonSettings` of
// rpc-daemon.ts), each further one a command; what they see goes to stdout, one line of JSON each.
import { randomUUID } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { io } from 'socket.io-client';

const say = (note) => process.stdout.write(`${JSON.stringify({ ...note, at: Date.now() })}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const instance = randomUUID();
const DEDUPE = { raw: {}, instance: { dedupe: instance }, durable: { dedupe: true } };

/** Before the handler begins, so that a run which nobody hears of is counted too. */
function noteExecution(file, { id, params, attempt }) {
  appendFileSync(file, `${params?.key ?? '-'} ${attempt} ${process.pid} ${id} ${Date.now()}\n`);
}

/** Request id → answer, of all daemons of this process. */
const answers = new Map();

function start(settings, { token, methods }, daemon) {
  const { url, kind, handlerMs, file, registers, reconnectionDelayMs } = settings;
  const socket = io(url, {
    auth: { token },
    transports: ['websocket'],
    forceNew: true,
    reconnectionDelay: reconnectionDelayMs,
    reconnectionDelayMax: Math.max(1000, reconnectionDelayMs),
    randomizationFactor: 0,
  });

  async function execute(request) {
    noteExecution(file, request);
    const { params } = request;
    const untilDone = performance.now() + (params?.busyMs ?? 0);
    while (performance.now() < untilDone); // a handler that blocks the whole process
    await sleep(params?.ms ?? handlerMs);
    if (params?.fails) return { rpcError: true, error: params.fails };
    return { key: params?.key, pid: process.pid, attempt: request.attempt, filling: 'x'.repeat(params?.bytes ?? 0) };
  }

  function answerOf(request) {
    if (kind === 'raw') return execute(request);
    if (!answers.has(request.id)) answers.set(request.id, execute(request));
    return answers.get(request.id);
  }

  /** The code of what it was refused with at last. */
  async function registerOne(method, triesLeft = 20) {
    const request = { method, ...DEDUPE[kind] };
    const ack = await socket
      .timeout(30_000)
      .emitWithAck('rpc-register', request)
      .catch((error) => ({ code: String(error) }));
    if (ack.ok) return [];
    if (!ack.retryable || triesLeft === 0 || !socket.connected) return [ack.code];
    await sleep(250);
    return registerOne(method, triesLeft - 1);
  }

  async function register(names) {
    const failed = (await Promise.all(names.map((method) => registerOne(method)))).flat();
    say({ note: 'registered', daemon, failed });
  }

  let connects = 0;
  socket.on('connect', () => {
    const isFirst = connects++ === 0;
    say({ note: 'connect', daemon, recovered: socket.recovered });
    if (registers === 'always' || isFirst || (registers === 'unless-recovered' && !socket.recovered)) register(methods);
  });
  socket.on('disconnect', (reason) => say({ note: 'disconnect', daemon, reason }));
  socket.on('rpc-request', (request, ack) => answerOf(request).then(ack));
  socket.on('rpc-cancelled', (cancelled) => say({ note: 'cancelled', daemon, ...cancelled }));
  socket.on('rpc-unregistered', (unregistered) => say({ note: 'unregistered', daemon, ...unregistered }));

  return {
    drop() {
      // a stock client whose engine is closed while it opens may never come back
      if (socket.io.engine?.readyState === 'open') socket.io.engine.close();
    },
    disconnect: () => socket.disconnect(),
    connect: () => socket.connect(),
    register: ({ method }) => register([method]),
    unregister: ({ method }) => socket.emit('rpc-unregister', { method }),
    stayAway() {
      socket.io.reconnection(false);
      socket.io.engine.close();
    },
  };
}

let daemons;
createInterface({ input: process.stdin })
  .on('line', (line) => {
    const message = JSON.parse(line);
    daemons ??= message.users?.map((user, index) => start(message, user, index));
    if (!message.command) return;
    const { command, daemon, ...rest } = message;
    for (const [index, each] of daemons.entries()) if (daemon === undefined || daemon === index) each[command](rest);
  })
  .on('close', () => process.exit(0)); // whoever started it is gone
