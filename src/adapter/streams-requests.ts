import { randomBytes } from 'node:crypto';
import { MessageType } from 'socket.io-adapter';
import { RelayError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { within } from '../core/sleep.js';
import { Connection, type RedisAddress } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { parse, stringify } from './codec.js';
import { decodeMessage, encodeMessage, type StreamsMessage } from './streams-format.js';

/** A dead link shows itself by that time. */
const BEAT_MS = 2000;
const COUNT_MS = 1000;
/** Before the name of an old server, where the names of processes go. */
const PREFIX = 'old:';

/** What the adapter of a namespace takes from other processes: `HoldfastAdapter.onMessage`. */
interface Guest {
  onMessage(from: string, message: Readonly<Record<string, unknown>>): void;
}

interface OpenRequest {
  /** An old server's answer. */
  readonly onAnswer: (message: StreamsMessage) => void;
  /** This server is being closed. */
  readonly onStop: () => void;
  readonly timer: NodeJS.Timeout;
}

export interface StreamsRequestsOptions {
  readonly url: RedisAddress;
  readonly keys: Keys;
  readonly processId: string;
  readonly channelPrefix: string;
  readonly commands: Connection;
  readonly logger: Logger;
}

/**
 * Questions between old servers and this one, on the old servers' channels. There this server is one of them: it is counted,
 * and answers for its own sockets. Each new server also subscribes to a channel that no old one has, in the same command, so
 * the difference of both counts is the number of old servers at that moment.
 */
export class StreamsRequests extends Service {
  readonly #guests = new Map<string, Guest>();
  readonly #open = new Map<string, OpenRequest>();
  readonly #connection: Connection;
  readonly #uid: string;
  /** By namespace: what was asked in this turn of the loop. */
  readonly #counts = new Map<string, Promise<number>>();
  #heartbeat: NodeJS.Timeout | undefined;
  #listensOn: unknown;

  constructor(private readonly options: StreamsRequestsOptions) {
    super();
    const { url, processId } = options;
    this.#uid = `holdfast-${processId}`;
    // no silence limit: a channel may be quiet for ever
    this.#connection = new Connection({ url, name: `holdfast:${processId}:bridge-channels`, opensLater: true });
    this.#connection.on('ready', () => this.#listen());
  }

  protected async onStart(): Promise<void> {
    const connection = this.#connection;
    connection.open();
    while (!(await connection.whenUp(500))) if (connection.isClosed) throw new Error('stopped while connecting');
    await Promise.all([...this.#guests.keys()].map((namespace) => this.#subscribe(namespace)));
    this.#heartbeat = setInterval(() => void this.#beat(), BEAT_MS);
    this.#heartbeat.unref();
  }

  protected async onStop(): Promise<void> {
    clearInterval(this.#heartbeat);
    for (const [requestId, { onStop }] of [...this.#open]) {
      this.#end(requestId);
      onStop();
    }
    this.#connection.close();
  }

  receive(namespace: string, guest: Guest): void {
    this.#guests.set(namespace, guest);
    void this.#subscribe(namespace);
  }

  dismiss(namespace: string): void {
    this.#guests.delete(namespace);
    if (this.#connection.isUp) this.#connection.redis.unsubscribe(...this.#channelsOf(namespace)).catch(() => {});
  }

  // --- what this server asks

  /** Old servers that have the namespace; 0 when Redis can't say. */
  count(namespace: string): Promise<number> {
    // who is counted and who is asked in one turn of the loop are the same
    const asked = this.#counts.get(namespace);
    if (asked) return asked;
    // a command would open a connection that is not open yet, or not any more
    if (!this.options.commands.isUp) return Promise.resolve(0);
    const [all, ours] = this.#countedChannels(namespace);
    const counting = within(COUNT_MS, this.options.commands.redis.call('PUBSUB', 'NUMSUB', all, ours)).then(
      differenceOf,
      () => 0,
    );
    this.#counts.set(namespace, counting);
    queueMicrotask(() => this.#counts.delete(namespace));
    return counting;
  }

  /**
   * The answers of all old servers to a FETCH_SOCKETS or SERVER_SIDE_EMIT.
   *
   * @throws {Error} when one of them doesn't answer in time, or this server is closed before
   */
  async ask(namespace: string, type: MessageType, data: object, timeoutMs: number): Promise<StreamsMessage[]> {
    const requestId = randomBytes(8).toString('hex');
    const answers: StreamsMessage[] = [];
    let expected = Number.POSITIVE_INFINITY;
    const answered = new Promise<void>((resolve, reject) => {
      const check = (): void => {
        if (answers.length >= expected) resolve();
      };
      this.#await(requestId, timeoutMs, {
        onAnswer: (message) => {
          answers.push(message);
          check();
        },
        onTimeout: () =>
          reject(new Error(`timeout reached: only ${answers.length} responses received out of ${expected}`)),
        onStop: () => reject(new RelayError('shutting_down')),
      });
      this.#publish(namespace, type, { ...data, requestId }).then((receivers) => {
        expected = receivers;
        check();
      }, reject);
    });
    try {
      await answered;
      return answers;
    } finally {
      this.#end(requestId);
    }
  }

  /** A SERVER_SIDE_EMIT that nobody answers. */
  async tell(namespace: string, data: object): Promise<void> {
    await this.#publish(namespace, MessageType.SERVER_SIDE_EMIT, data);
  }

  /** A broadcast with acks. `onCount` is called `counted` times, whatever happens. */
  async broadcast(
    namespace: string,
    data: object,
    { counted, timeoutMs }: { counted: number; timeoutMs: number },
    onCount: (clientCount: number) => void,
    onAck: (value: unknown) => void,
  ): Promise<void> {
    if (counted === 0) return;
    const requestId = randomBytes(8).toString('hex');
    let missing = counted;
    const count = (clientCount: number): void => {
      if (missing-- > 0) onCount(clientCount);
    };
    const onAnswer = ({ type, data: answer }: StreamsMessage): void => {
      if (type === MessageType.BROADCAST_CLIENT_COUNT) count(Number(answer.clientCount));
      else onAck(answer.packet);
    };
    // whoever emitted has a time-out of its own
    this.#await(requestId, timeoutMs, { onAnswer, onTimeout: () => this.#end(requestId), onStop: () => {} });
    const reached = await this.#publish(namespace, MessageType.BROADCAST, { ...data, requestId });
    for (let gone = reached; gone < counted; gone++) count(0);
  }

  #await(
    requestId: string,
    timeoutMs: number,
    { onTimeout, ...request }: Omit<OpenRequest, 'timer'> & { readonly onTimeout: () => void },
  ): void {
    this.#open.set(requestId, { ...request, timer: setTimeout(onTimeout, timeoutMs) });
  }

  #end(requestId: string): void {
    clearTimeout(this.#open.get(requestId)?.timer);
    this.#open.delete(requestId);
  }

  /** Resolves with the number of old servers that it reached. */
  async #publish(namespace: string, type: MessageType, data: object): Promise<number> {
    if (!this.options.commands.isUp) throw new RelayError('unavailable');
    const payload = encodeMessage({ uid: this.#uid, nsp: namespace, type, data });
    const [all, ours] = this.#countedChannels(namespace);
    const replies = await this.options.commands.redis
      .multi()
      .call('PUBSUB', 'NUMSUB', all, ours)
      .publish(all, payload)
      .exec();
    return differenceOf(replies?.[0]?.[1]);
  }

  // --- what old servers ask

  /** The old server's name, if `process` stands for one. */
  static nameOf(process: string): string | undefined {
    return process.startsWith(PREFIX) ? process.slice(PREFIX.length) : undefined;
  }

  /** A guest's answer to what came as a message from `old:<name>`. */
  async answer(name: string, namespace: string, message: Readonly<Record<string, unknown>>): Promise<void> {
    const { answers, count, value } = message;
    const [type, ...rest] = String(answers).split(':');
    const requestId = rest.join(':');
    const found = typeof value === 'string' ? parse(value) : undefined;
    const [answerType, data] =
      type === 'fetch'
        ? [MessageType.FETCH_SOCKETS_RESPONSE, { sockets: found }]
        : type === 'emit'
          ? [MessageType.SERVER_SIDE_EMIT_RESPONSE, { packet: found }]
          : count !== undefined
            ? [MessageType.BROADCAST_CLIENT_COUNT, { clientCount: count }]
            : [MessageType.BROADCAST_ACK, { packet: found }];
    if (!this.options.commands.isUp) throw new RelayError('unavailable');
    const payload = encodeMessage({ uid: this.#uid, nsp: namespace, type: answerType, data: { requestId, ...data } });
    await this.options.commands.redis.publish(this.#channelOf(namespace, name), payload);
  }

  #onMessage(payload: Uint8Array): void {
    const message = decodeMessage(payload);
    if (!message || message.uid === this.#uid) return;
    const { uid, nsp, type, data } = message;
    const { requestId } = data;
    switch (type) {
      case MessageType.BROADCAST_CLIENT_COUNT:
      case MessageType.BROADCAST_ACK:
      case MessageType.FETCH_SOCKETS_RESPONSE:
      case MessageType.SERVER_SIDE_EMIT_RESPONSE:
        return this.#open.get(String(requestId))?.onAnswer(message);
    }
    // new servers have asked each other already
    if (uid.startsWith('holdfast-')) return;
    const { packet, opts } = data as { packet?: { data?: unknown }; opts?: object };
    const guest = this.#guests.get(nsp);
    const hand = (told: object): void => guest?.onMessage(PREFIX + uid, { ...opts, ...told });
    switch (type) {
      case MessageType.BROADCAST:
        return hand({ kind: 'broadcast', data: stringify(packet?.data), request: `broadcast:${requestId}` });
      case MessageType.FETCH_SOCKETS:
        return hand({ kind: 'fetch', request: `fetch:${requestId}` });
      case MessageType.SERVER_SIDE_EMIT:
        return hand({
          kind: 'emit',
          data: stringify(packet),
          request: requestId === undefined ? undefined : `emit:${requestId}`,
        });
    }
  }

  // --- channels

  #channelOf(namespace: string, name = ''): string {
    const all = `${this.options.channelPrefix}#${namespace}#`;
    return name === '' ? all : `${all}${name}#`;
  }

  #countedChannels(namespace: string): [string, string] {
    return [this.#channelOf(namespace), this.options.keys.bridgeChannel(namespace)];
  }

  #channelsOf(namespace: string): string[] {
    return [...this.#countedChannels(namespace), this.#channelOf(namespace, this.#uid)];
  }

  async #subscribe(namespace: string): Promise<void> {
    // what can't be subscribed now is, when the connection is there again
    if (this.#connection.isUp) await this.#connection.redis.subscribe(...this.#channelsOf(namespace)).catch(() => {});
  }

  #listen(): void {
    const { redis } = this.#connection;
    for (const namespace of this.#guests.keys()) void this.#subscribe(namespace);
    // the same client comes ready again after each reconnect
    if (this.#listensOn === redis) return;
    this.#listensOn = redis;
    redis.on('messageBuffer', (_channel: Buffer, payload: Buffer) => {
      try {
        this.#onMessage(payload);
      } catch (error) {
        this.options.logger.error(
          { event: 'bridge_request_failed', err: error },
          "an old server's request could not be handled",
        );
      }
    });
  }

  async #beat(): Promise<void> {
    const connection = this.#connection;
    if (!connection.isUp) return;
    const { generation } = connection;
    const answer = await within(BEAT_MS, connection.redis.ping()).catch(() => 'failed');
    if (answer === undefined && generation === connection.generation) connection.reset();
  }
}

/** Of `PUBSUB NUMSUB`: channel, count, channel, count. */
function differenceOf(reply: unknown): number {
  const [, all = 0, , ours = 0] = (reply ?? []) as [string, number, string, number];
  return Math.max(0, Number(all) - Number(ours));
}
