import { io, type Socket } from 'socket.io-client';
import type { Outcome, Subscriber, Subscription, ToldGap } from './ledger.js';
import { eventually } from './poll.js';

export interface ClientOptions {
  readonly token: string;
  /** As the stock client takes them; default `['websocket']`. */
  readonly transports?: readonly ('polling' | 'websocket')[];
  /** `SOCKET_PATH`; default `/socket.io`. */
  readonly path?: string;
  /** More of the handshake's `auth`: `position`, `device`, … */
  readonly auth?: Readonly<Record<string, unknown>>;
  /** Least wait before a reconnect, in ms; default 50 (stock: 1,000). */
  readonly reconnectionDelayMs?: number;
  /** How long an ack is waited for, in ms; default 10,000. */
  readonly ackMs?: number;
}

export interface Meta {
  readonly room: string;
  readonly id: string;
  readonly at: number;
}

/** One application event as it came. An ephemeral one and one replayed by `subscribe.from` have no position. */
export interface Received {
  readonly event: string;
  readonly data: unknown;
  readonly meta: Meta;
  readonly position: string | undefined;
  /** Of this process, in ms since 1970. */
  readonly receivedAt: number;
}

/** An event of the relay itself: `presence`, `device:throttled`, `holdfast:closing`, `rpc-…` and so on. */
export interface Control {
  readonly event: string;
  readonly args: readonly unknown[];
}

export interface Connected {
  readonly recovered: boolean;
  readonly socketId: string;
  readonly at: number;
}

export interface Disconnected {
  readonly reason: string;
  readonly at: number;
}

export interface Publication {
  readonly room: string;
  readonly event: string;
  readonly data?: unknown;
  readonly id?: string;
  readonly ephemeral?: boolean;
}

/** What the relay answers to `subscribe`, `publish` and the like. */
export interface Ack {
  readonly ok: boolean;
  readonly position?: string;
  readonly recovered?: boolean;
  readonly error?: string;
  readonly code?: string;
  readonly retryable?: boolean;
  readonly mayHaveHappened?: boolean;
  readonly retryAfterMs?: number;
}

const CONTROL = /^(holdfast:|rpc-|device:|presence$)/;

/** A stock socket.io-client that keeps all it sees, in order. It reconnects by itself and never subscribes again. */
export class Client implements AsyncDisposable {
  /** For what the wrapper doesn't do: RPC handlers, other events. */
  readonly socket: Socket;
  readonly received: Received[] = [];
  readonly gaps: ToldGap[] = [];
  /** Each `holdfast:position`. */
  readonly positions: string[] = [];
  readonly control: Control[] = [];
  readonly connects: Connected[] = [];
  readonly disconnects: Disconnected[] = [];
  readonly connectErrors: Error[] = [];
  readonly subscriptions: Subscription[] = [];
  readonly #ackMs: number;

  constructor(url: string, options: ClientOptions) {
    const { token, transports = ['websocket'], path = '/socket.io', auth = {} } = options;
    const { reconnectionDelayMs = 50, ackMs = 10_000 } = options;
    this.#ackMs = ackMs;
    this.socket = io(url, {
      path,
      auth: { token, ...auth },
      transports: [...transports],
      forceNew: true,
      reconnectionDelay: reconnectionDelayMs,
      reconnectionDelayMax: Math.max(1000, reconnectionDelayMs),
      autoConnect: false,
    });
    this.#record();
    this.socket.connect();
  }

  /** Where the newest entry with a position stood. */
  get position(): string | undefined {
    return this.received.findLast(({ position }) => position !== undefined)?.position ?? this.positions.at(-1);
  }

  /** @throws when there was no CONNECT within the time, or at once when the refusal is final */
  async connected(withinMs = 10_000): Promise<void> {
    const why = (): string => this.connectErrors.at(-1)?.message ?? 'no answer';
    const isSettled = (): boolean => {
      if (this.socket.connected || !this.socket.active) return true;
      throw new Error(why());
    };
    await eventually(isSettled, { withinMs, what: 'a client to be connected' });
    if (!this.socket.connected) throw new Error(`the client was refused: ${why()}`);
  }

  /** An ack with `ok` is noted as a subscription of the ledger. */
  async subscribe(room: string, from?: string): Promise<Ack> {
    const ack = await this.request('subscribe', { room, ...(from !== undefined && { from }) });
    if (ack.ok) this.subscriptions.push({ room, position: from ?? ack.position, at: Date.now() });
    return ack;
  }

  unsubscribe(room: string): Promise<Ack> {
    return this.request('unsubscribe', { room });
  }

  publish(publication: Publication): Promise<Ack> {
    return this.request('publish', publication);
  }

  /** Any request of the protocol. @throws when no ack came in time, or the connection was lost before it */
  request<T = Ack>(event: string, payload: unknown): Promise<T> {
    return this.socket.timeout(this.#ackMs).emitWithAck(event, payload) as Promise<T>;
  }

  /** Closes the transport under the client's feet; it comes back by itself. */
  cut(): void {
    this.socket.io.engine?.close();
  }

  /** For `checkLedger`. */
  account(name: string): Subscriber {
    const deliveries = this.received.map(({ meta, position }) => ({ id: meta.id, position }));
    return { name, subscriptions: [...this.subscriptions], deliveries, gaps: [...this.gaps] };
  }

  async stop(): Promise<void> {
    this.socket.disconnect();
    this.socket.removeAllListeners();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  #record(): void {
    this.socket.on('connect', () =>
      this.connects.push({ recovered: this.socket.recovered, socketId: this.socket.id ?? '', at: Date.now() }),
    );
    this.socket.on('disconnect', (reason) => this.disconnects.push({ reason, at: Date.now() }));
    this.socket.on('connect_error', (error) => this.connectErrors.push(error));
    this.socket.onAny((event: string, ...args: unknown[]) => this.#take(event, args));
  }

  #take(event: string, args: unknown[]): void {
    if (event === 'holdfast:gap') this.gaps.push(args[0] as ToldGap);
    else if (event === 'holdfast:position') this.positions.push(args[0] as string);
    else if (CONTROL.test(event)) this.control.push({ event, args });
    else {
      const [data, meta, last] = args as [unknown, Meta, unknown];
      const position = typeof last === 'string' ? last : undefined;
      this.received.push({ event, data, meta, position, receivedAt: Date.now() });
    }
  }
}

/** Without waiting for CONNECT: for refusals and outages. */
export function open(url: string, options: ClientOptions): Client {
  return new Client(url, options);
}

/** A client that is connected. */
export async function connect(url: string, options: ClientOptions): Promise<Client> {
  const client = open(url, options);
  try {
    await client.connected();
  } catch (error) {
    await client.stop();
    throw error;
  }
  return client;
}

/** What the ledger calls the end of a publish: no ack, or `mayHaveHappened`, is `unknown`. */
export async function outcomeOf(publishing: Promise<Ack>): Promise<Outcome> {
  const ack = await publishing.catch(() => undefined);
  if (ack?.ok && ack.position !== undefined) return { kind: 'accepted', position: ack.position };
  return { kind: ack && !ack.ok && !ack.mayHaveHappened ? 'refused' : 'unknown' };
}
