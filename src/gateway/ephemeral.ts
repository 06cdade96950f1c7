import { RelayError } from '../core/errors.js';
import type { Logger } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import { Connection } from '../redis/connect.js';
import type { Keys } from '../redis/keys.js';
import { encodeEvent } from './frames.js';
import type { Hub } from './hub.js';
import type { GatewayMetrics } from './metrics.js';

const PUBLISH_MS = 1900;
const SUBSCRIBE_MS = 500;
/** A room without a member here keeps its channel for this long: sockets come and go, and a handshake joins before it is a member. */
const LINGER_MS = 5000;

export interface EphemeralOptions {
  readonly url: string;
  readonly pod: string;
  readonly keys: Keys;
  readonly hub: Hub;
  readonly publishing: Connection;
  readonly metrics: GatewayMetrics;
  readonly logger: Logger;
}

/**
 * Events beside the log: by Pub/Sub, one channel per room that has a member on this pod. One for a room without members costs
 * no pod but its publisher's anything. At most once, and not replayed.
 */
export class Ephemeral extends Service {
  readonly #connection: Connection;
  /** Rooms whose channels are ours; the promise resolves when Redis has said so. */
  readonly #subscribed = new Map<string, Promise<void>>();
  /** Channels to subscribe at the end of this tick, and whom to tell. */
  #wanted = new Map<string, () => void>();
  readonly #lingering = new Map<string, NodeJS.Timeout>();
  /** The channel of this process itself, and whether anything has come by it. */
  #self: { readonly channel: string; readonly heard: AbortController } | undefined;
  #heartbeat: NodeJS.Timeout | undefined;
  #listensOn: unknown;

  constructor(private readonly options: EphemeralOptions) {
    super();
    // no silence limit: a channel may be quiet for ever; the heartbeat below notices a dead link
    this.#connection = new Connection({ url: options.url, name: `holdfast:${options.pod}:pubsub` });
  }

  protected async onStart(): Promise<void> {
    const connection = this.#connection;
    const onReady = (): void => {
      this.#listen();
      this.#resubscribe();
    };
    connection.on('ready', onReady);
    while (!(await connection.whenUp(500))) if (connection.isClosed) throw new Error('stopped while connecting');
    this.#heartbeat = setInterval(() => void this.#beat(), 2000);
    this.#heartbeat.unref();
  }

  protected async onStop(): Promise<void> {
    clearInterval(this.#heartbeat);
    for (const timer of this.#lingering.values()) clearTimeout(timer);
    this.#connection.close();
  }

  /**
   * Resolves when a message that this process published has come back to it. The channel stays subscribed: as long as it is, this
   * process has a connection to Redis, see {@link isConnected}.
   */
  async hearSelf(processId: string): Promise<void> {
    const { keys, publishing } = this.options;
    const channel = keys.selfTest(processId);
    const heard = new AbortController();
    this.#self = { channel, heard };
    while (!heard.signal.aborted) {
      await this.#connection.redis
        .subscribe(channel)
        .then(() => publishing.redis.publish(channel, 'hello'))
        .catch(() => {});
      await sleep(200, heard.signal);
    }
  }

  /** Whether that process has a connection to Redis: without one it is dead, or as good as. */
  async isConnected(processId: string): Promise<boolean> {
    const { keys, publishing } = this.options;
    const [, count] = (await publishing.redis.pubsub('NUMSUB', keys.selfTest(processId))) as [string, number];
    return Number(count) > 0;
  }

  /** @throws {RelayError} `unavailable` with `mayHaveHappened` */
  async publish(room: string, payload: string): Promise<void> {
    const { publishing, keys, metrics } = this.options;
    metrics.ephemeral.inc({ kind: 'published' });
    if (!publishing.isUp) throw new RelayError('unavailable');
    publishing.joinWrites();
    const sent = publishing.redis.publish(keys.ephemeral(room), payload);
    const receivers = await within(PUBLISH_MS, sent).catch(() => undefined);
    if (receivers === undefined) throw new RelayError('unavailable', undefined, { mayHaveHappened: true });
  }

  /** Resolves when ephemeral events of the room reach this pod, or after 500 ms: they are at most once anyway. */
  async join(room: string): Promise<void> {
    clearTimeout(this.#lingering.get(room));
    this.#lingering.delete(room);
    let subscribed = this.#subscribed.get(room);
    if (!subscribed) {
      subscribed = new Promise<void>((resolve) => {
        if (this.#wanted.size === 0) setImmediate(() => this.#subscribeWanted());
        this.#wanted.set(room, resolve);
      });
      this.#subscribed.set(room, subscribed);
    }
    await within(SUBSCRIBE_MS, subscribed);
  }

  /** Call when the room may have lost its last member here. */
  leave(room: string): void {
    if (this.options.hub.membersOf(room) || this.#lingering.has(room)) return;
    const timer = setTimeout(() => {
      this.#lingering.delete(room);
      if (this.options.hub.membersOf(room)) return;
      this.#subscribed.delete(room);
      if (this.#connection.isUp) this.#connection.redis.unsubscribe(this.options.keys.ephemeral(room)).catch(() => {});
    }, LINGER_MS);
    timer.unref();
    this.#lingering.set(room, timer);
  }

  #subscribeWanted(): void {
    const wanted = this.#wanted;
    this.#wanted = new Map();
    const done = (): void => {
      for (const resolve of wanted.values()) resolve();
    };
    // what can't be subscribed now is, when the connection is there again
    if (!this.#connection.isUp) return done();
    const channels = [...wanted.keys()].map((room) => this.options.keys.ephemeral(room));
    this.#connection.redis.subscribe(...channels).then(done, done);
  }

  /** Once per client: the same one comes `ready` again after each reconnect. */
  #listen(): void {
    const { redis } = this.#connection;
    if (this.#listensOn === redis) return;
    this.#listensOn = redis;
    redis.on('messageBuffer', (channel: Buffer, message: Buffer) => this.#deliver(channel.toString(), message));
  }

  #resubscribe(): void {
    if (this.#self) this.#connection.redis.subscribe(this.#self.channel).catch(() => {});
    const rooms = [...this.#subscribed.keys()];
    for (let from = 0; from < rooms.length; from += 500) {
      const channels = rooms.slice(from, from + 500).map((room) => this.options.keys.ephemeral(room));
      this.#connection.redis.subscribe(...channels).catch(() => {});
    }
  }

  async #beat(): Promise<void> {
    if (!this.#connection.isUp) return;
    const generation = this.#connection.generation;
    const answer = await within(2000, this.#connection.redis.ping()).catch(() => 'failed');
    if (answer === undefined && generation === this.#connection.generation) this.#connection.reset();
  }

  #deliver(channel: string, message: Buffer): void {
    if (channel === this.#self?.channel) return this.#self.heard.abort();
    const { hub, metrics, keys } = this.options;
    const members = hub.membersOf(channel.slice(keys.ephemeral('').length));
    if (!members || message.length < 2) return;
    const parcel = encodeEvent(message, [], undefined);
    let given = 0;
    for (const subscriber of members) {
      const { outbox } = subscriber;
      if (!outbox.isOpen) continue;
      if (subscriber.leavesTooMuch) {
        subscriber.closeAsSlow(metrics, '1 MiB unread');
        continue;
      }
      hub.flush(subscriber);
      outbox.write(parcel);
      given++;
    }
    if (given > 0) metrics.ephemeral.inc({ kind: 'delivered' }, given);
  }
}
