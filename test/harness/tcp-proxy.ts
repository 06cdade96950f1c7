import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { freePort } from './free-port.js';

/** The faults in force. They apply to the connections that are open and to those to come. */
interface Faults {
  isBlackhole: boolean;
  dropsReplies: boolean;
  holdsRequests: boolean;
  delayMs: number;
}

type Direction = 'request' | 'reply';

const MAX_QUEUED_BYTES = 1024 * 1024;

/** One direction of one connection: a queue between two sockets, which faults hold up, empty or delay. */
class Flow {
  readonly #source: Socket;
  readonly #target: Socket;
  readonly #direction: Direction;
  readonly #faults: Faults;
  #queue: { readonly chunk: Buffer | 'end' | 'reset'; readonly dueAt: number }[] = [];
  #queuedBytes = 0;
  #timer: NodeJS.Timeout | undefined;
  #hasEnded = false;

  constructor(source: Socket, target: Socket, direction: Direction, faults: Faults) {
    this.#source = source;
    this.#target = target;
    this.#direction = direction;
    this.#faults = faults;
    source.on('data', (chunk) => this.#push(chunk));
    source.on('end', () => this.#end('end'));
    source.on('error', () => this.#end('reset'));
    source.on('close', (hadError) => this.#end(hadError ? 'reset' : 'end'));
    target.on('drain', () => this.update());
    target.on('close', () => this.clear());
    this.update();
  }

  /** After each change of the faults: passes on what may pass now. */
  update(): void {
    clearTimeout(this.#timer);
    while (!this.#isHeld && this.#queue[0] && !this.#target.writableNeedDrain) {
      const { chunk, dueAt } = this.#queue[0];
      const waitMs = dueAt - performance.now();
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.update(), waitMs);
        break;
      }
      this.#queue.shift();
      this.#pass(chunk);
    }
    const isFull = this.#queuedBytes > MAX_QUEUED_BYTES || this.#target.writableNeedDrain;
    // not even an end is noticed while held: a cable that was cut tells nobody
    if (this.#isHeld || isFull) this.#source.pause();
    else this.#source.resume();
  }

  clear(): void {
    clearTimeout(this.#timer);
    this.#queue = [];
    this.#queuedBytes = 0;
  }

  get #isHeld(): boolean {
    return this.#faults.isBlackhole || (this.#faults.holdsRequests && this.#direction === 'request');
  }

  #push(chunk: Buffer): void {
    if (this.#faults.dropsReplies && this.#direction === 'reply') return;
    this.#queuedBytes += chunk.length;
    this.#queue.push({ chunk, dueAt: performance.now() + this.#faults.delayMs });
    this.update();
  }

  #end(how: 'end' | 'reset'): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#queue.push({ chunk: how, dueAt: performance.now() + this.#faults.delayMs });
    this.update();
  }

  #pass(chunk: Buffer | 'end' | 'reset'): void {
    if (this.#target.destroyed) return;
    if (chunk === 'end') this.#target.end();
    else if (chunk === 'reset') this.#target.resetAndDestroy();
    else {
      this.#queuedBytes -= chunk.length;
      this.#target.write(chunk);
    }
  }
}

interface Pair {
  readonly client: Socket;
  readonly upstream: Socket;
  readonly flows: readonly Flow[];
  /** What its client began with. */
  opening: Buffer | undefined;
  /** Bytes that had been passed back to its client when that last said something. */
  repliedAtRequest: number | undefined;
}

/** A TCP proxy in front of a port of this machine, which can do what a network does. */
export class TcpProxy implements AsyncDisposable {
  readonly port: number;
  /** Called whenever a client has said something, unless it is held up: then nobody knows of it. */
  onRequest: () => void = () => {};
  readonly #targetPort: number;
  readonly #faults: Faults = { isBlackhole: false, dropsReplies: false, holdsRequests: false, delayMs: 0 };
  readonly #pairs = new Set<Pair>();
  #server: Server | undefined;

  constructor(port: number, targetPort: number) {
    this.port = port;
    this.#targetPort = targetPort;
  }

  get connections(): number {
    return this.#pairs.size;
  }

  /** What those clients began with that are there, and have said something since the last word that was passed back to them. */
  get waiting(): readonly Buffer[] {
    return [...this.#pairs].flatMap(({ client, opening, repliedAtRequest }) => {
      const isWaiting = client.bytesWritten === repliedAtRequest && !client.readableEnded && !client.destroyed;
      return opening && isWaiting ? [opening] : [];
    });
  }

  /** Resets every connection on both sides; returns how many. */
  rst(): number {
    const pairs = [...this.#pairs];
    for (const { client, upstream } of pairs) {
      client.resetAndDestroy();
      upstream.resetAndDestroy();
    }
    return pairs.length;
  }

  /** Accepts, and passes nothing in either direction; what was held arrives when it is lifted, as TCP would resend it. */
  blackhole(on: boolean): void {
    this.#set({ isBlackhole: on });
  }

  /** Requests pass, replies are lost for good. */
  dropReplies(on: boolean): void {
    this.#set({ dropsReplies: on });
  }

  /** Requests wait here until it is lifted; replies pass. */
  holdRequests(on: boolean): void {
    this.#set({ holdsRequests: on });
  }

  /** Each chunk, in each direction, that comes from now on. */
  delay(ms: number): void {
    this.#set({ delayMs: ms });
  }

  /** New connections are refused; those that are open stay. */
  async refuse(on: boolean): Promise<void> {
    if (on) await this.#close();
    else await this.listen();
  }

  async listen(): Promise<void> {
    if (this.#server) return;
    const server = createServer({ allowHalfOpen: true }, (client) => this.#accept(client));
    this.#server = server;
    server.listen(this.port, '127.0.0.1');
    await once(server, 'listening');
  }

  async stop(): Promise<void> {
    await this.#close();
    const closed = [...this.#pairs].flatMap((pair) => [pair.client, pair.upstream]).filter((socket) => !socket.closed);
    this.rst();
    await Promise.all(closed.map((socket) => socket.closed || once(socket, 'close').catch(() => {})));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  #set(change: Partial<Faults>): void {
    Object.assign(this.#faults, change);
    for (const pair of this.#pairs) for (const flow of pair.flows) flow.update();
  }

  #accept(client: Socket): void {
    const upstream = connect({ port: this.#targetPort, host: '127.0.0.1', allowHalfOpen: true });
    for (const socket of [client, upstream]) socket.setNoDelay(true);
    const flows = [
      new Flow(client, upstream, 'request', this.#faults),
      new Flow(upstream, client, 'reply', this.#faults),
    ];
    const pair: Pair = { client, upstream, flows, opening: undefined, repliedAtRequest: undefined };
    this.#pairs.add(pair);
    client.on('data', (chunk: Buffer) => {
      pair.opening ??= chunk;
      pair.repliedAtRequest = client.bytesWritten;
      this.onRequest();
    });
    const left = (): void => {
      if (client.destroyed && upstream.destroyed) this.#pairs.delete(pair);
    };
    client.on('close', left);
    upstream.on('close', left);
  }

  /** `server.close` alone would wait for the open connections too. */
  #close(): Promise<void> {
    this.#server?.close();
    this.#server = undefined;
    return Promise.resolve();
  }
}

export async function startTcpProxy(targetPort: number): Promise<TcpProxy> {
  const proxy = new TcpProxy(await freePort(), targetPort);
  await proxy.listen();
  return proxy;
}
