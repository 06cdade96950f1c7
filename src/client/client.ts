// for applications whose `lib` is older than `await using`
/// <reference lib="esnext.disposable" preserve="true" />
import type { Socket } from 'socket.io-client';
import { RelayError } from '../core/errors.js';
import { parsePosition } from '../wire/position.js';
import { type CallOptions, Calls } from './calls.js';
import { Connection } from './connection.js';
import { Emitter } from './emitter.js';
import type { ClientEvents, EventMap, Presence, PresenceChange, RelayEvent, Resync, Status } from './events.js';
import { Intake } from './intake.js';
import { Membership } from './membership.js';
import { newId } from './new-id.js';
import { type ClientOptions, type Settings, settle, wholeNumber } from './options.js';
import { PlaceKeeper } from './place.js';
import { Progress } from './progress.js';
import { type Published, type PublishOptions, publishOnce } from './publish.js';
import type { Handler, Registration } from './registration.js';
import { Registrations } from './registrations.js';
import { Repeater } from './repeat.js';
import { Room } from './room.js';
import { Subscription } from './subscription.js';

/** Within half of the relay's window for ids. */
const MAX_PUBLISH_MS = 60_000;
const MAX_PUBLISHING = 1000;
/** Of the relay's 1,000 a socket has up to three of its own: its user's, tenant's and device's. */
const MAX_ROOMS = 997;
const PRESENCE_MS = 10_000;

export interface SubscribeOptions<Events extends EventMap> {
  /** Called for one event after the other, the next when its promise has settled. Without it, use `for await`. */
  readonly onEvent?: (event: RelayEvent<Events>) => unknown;
  /** What the room brought behind this position comes first. It wins over what the store knows of the room. */
  readonly from?: string;
  /** Instead of the client's. */
  readonly bufferSize?: number;
}

/** Connects at once. */
export function createClient<Events extends EventMap = EventMap>(options: ClientOptions): Client<Events> {
  return new Client<Events>(options);
}

/** A client of the relay, which stays connected until it is closed. */
export class Client<Events extends EventMap = EventMap> implements AsyncDisposable {
  readonly #settings: Settings;
  readonly #connection: Connection;
  readonly #intake: Intake<Events>;
  readonly #membership: Membership<Events>;
  readonly #registrations: Registrations;
  readonly #repeater: Repeater;
  readonly #calls: Calls;
  readonly #emitter = new Emitter<ClientEvents>();
  readonly #rooms = new Map<string, Room<Events>>();
  /** Rooms of an earlier run that nobody has subscribed yet. */
  readonly #remembered = new Map<string, string>();
  /** Something of these came, and nobody took it. */
  readonly #missed = new Set<string>();
  readonly #progress: Progress;
  readonly #keeper: PlaceKeeper;
  readonly #stop = new AbortController();
  #status: Status = { state: 'connecting' };
  #resyncDue: Resync['reason'] | undefined;
  #publishing = 0;
  #closed: Promise<void> | undefined;

  constructor(options: ClientOptions) {
    const settings = settle(options);
    this.#settings = settings;
    const tell = (error: RelayError): void => this.#tell(error);
    const changed = (): void => this.#keeper.changed();
    const resync = (reason: Resync['reason']): void => this.#resync(reason);
    const place = () => ({ position: this.#progress.position, rooms: this.#storedRooms() });
    this.#keeper = new PlaceKeeper(settings.store, settings.saveEveryMs, place, tell);
    this.#progress = new Progress(changed);
    this.#intake = new Intake({
      rooms: this.#rooms,
      progress: this.#progress,
      rememberedEvents: settings.rememberedEvents,
      onLag: ({ name }) => this.#setStatus({ state: 'lagging', room: name }),
      onGap: (gap) => {
        this.#emitter.emit('gap', gap);
        this.#resync('gap');
      },
      onLost: () => this.#resync('lost'),
      onUnwanted: (room) => this.#remembered.has(room) && this.#missed.add(room),
    });
    this.#connection = new Connection(settings, {
      resumeFrom: () => this.#intake.received,
      onConnected: (isRecovered) => {
        // at once: calls wait for it
        this.#registrations.connected(isRecovered);
        void this.#connected(isRecovered);
      },
      onLost: (error) => this.#setStatus({ state: 'connecting', error }),
      onClosed: (error) => void this.#close(error),
      onEvent: (event, args) => this.#take(event, args),
      onPermissions: () => void this.#membership.rejoin(),
      onError: tell,
    });
    this.#membership = new Membership({
      connection: this.#connection,
      rooms: this.#rooms,
      signal: this.#stop.signal,
      place: () => ({ received: this.#intake.received, handled: this.#progress.position }),
      onChange: changed,
      onResync: resync,
      onError: tell,
      onGone: () => this.#taken(),
    });
    this.#registrations = new Registrations({
      connection: this.#connection,
      signal: this.#stop.signal,
      maxPayloadBytes: settings.maxPayloadBytes,
      onError: tell,
    });
    this.#repeater = new Repeater(this.#connection);
    this.#calls = new Calls(this.#connection, this.#repeater, settings);
    const { signal } = options;
    if (signal?.aborted) void this.close();
    else signal?.addEventListener('abort', () => void this.close(), { once: true, signal: this.#stop.signal });
    // what is subscribed in this turn is there before the first event
    void this.#start();
  }

  get status(): Status {
    return this.#status;
  }

  /** The stock socket, for what this has no method for. Don't connect or disconnect it. */
  get socket(): Socket {
    return this.#connection.socket;
  }

  /** @returns ends it */
  on<Name extends keyof ClientEvents>(name: Name, listener: (payload: ClientEvents[Name]) => void): () => void {
    return this.#emitter.on(name, listener);
  }

  /**
   * Resolves when the client is connected and its rooms are subscribed; or is `lagging`, when rooms may wait for their
   * consumers to take what there is.
   *
   * @throws {RelayError} what it was closed with; `cancelled`
   */
  live(): Promise<void> {
    return new Promise((resolve, reject) => {
      const look = (status: Status): boolean => {
        if (status.state === 'connecting') return false;
        if (status.state === 'closed') reject(this.#connection.closedError());
        else resolve();
        return true;
      };
      if (look(this.#status)) return;
      const end = this.on('status', (status) => {
        if (look(status)) end();
      });
    });
  }

  /**
   * A room's events, from now on or from where the store says that an earlier run was. Kept over reconnects; several
   * subscriptions may share a room.
   *
   * @throws {RelayError} `bad_request` for what can be seen at once; the relay's refusals come by `ready`, `error` and the loop
   */
  subscribe(room: string, options: SubscribeOptions<Events> = {}): Subscription<Events> {
    const { onEvent, from, bufferSize = this.#settings.bufferSize } = options;
    if (this.#closed) throw this.#connection.closedError();
    const known = this.#rooms.get(room);
    if (from !== undefined && !parsePosition(from)) throw new RelayError('bad_request', 'from: wants a position');
    if (from !== undefined && known)
      throw new RelayError('bad_request', `from: ${JSON.stringify(room)} is subscribed already`);
    if (!known && this.#rooms.size >= MAX_ROOMS)
      throw new RelayError('bad_request', `room: a client has at most ${MAX_ROOMS} rooms`);
    const shared = known ?? new Room<Events>(room);
    const subscription: Subscription<Events> = new Subscription(room, wholeNumber('bufferSize', bufferSize, 1), {
      leave: () => this.#unsubscribe(shared, subscription),
      onTaken: () => this.#taken(),
    });
    shared.subscriptions.add(subscription);
    if (shared.isJoined) subscription.markReady();
    if (!known) this.#open(shared, from);
    if (onEvent) void this.#handle(subscription, onEvent);
    return subscription;
  }

  /**
   * Resolves when the event is in the log. Repeated with the same id until then, as long as that can help: it lands once.
   *
   * Events that are published without waiting for each other may change places when one has to be repeated.
   *
   * @throws {RelayError} what the relay says. With `mayHaveHappened` it may have landed: publish again with the same `id`
   * within 2 minutes of the first try
   */
  async publish<Name extends keyof Events & string>(
    room: string,
    event: Name,
    data: Events[Name],
    { id = newId(), ephemeral = false, timeoutMs = 30_000, signal }: PublishOptions = {},
  ): Promise<Published> {
    wholeNumber('timeoutMs', timeoutMs, 1, MAX_PUBLISH_MS);
    if (this.#publishing >= MAX_PUBLISHING)
      throw new RelayError('overloaded', `${MAX_PUBLISHING} events wait to be published`);
    this.#publishing++;
    try {
      const request = { room, event, data, id, ...(ephemeral && { ephemeral }) };
      return await publishOnce(this.#connection, request, { timeoutMs, signal });
    } finally {
      this.#publishing--;
    }
  }

  /**
   * Calls a method, whoever runs it, and resolves with its result; over reconnects of either side it stays one call.
   *
   * @throws {CallError} `no_worker`, `worker_lost`, `handler_error`, `timeout`, `cancelled` …, with `mayHaveRun`
   */
  call<Result = unknown>(method: string, params?: unknown, options: CallOptions = {}): Promise<Result> {
    return this.#calls.call(method, params, options) as Promise<Result>;
  }

  /**
   * Runs a method of the token's user from now on, over all connections. The newest registration of a method has it.
   *
   * @throws {RelayError} `conflict` if this client has it already; the relay's refusals come by `ready` and `error`
   */
  register<Params = unknown, Result = unknown>(method: string, handler: Handler<Params, Result>): Registration {
    if (this.#closed) throw this.#connection.closedError();
    return this.#registrations.add(method, handler);
  }

  /**
   * Which devices somebody has online, and which methods are registered; default: the token's own user.
   *
   * @throws {RelayError} `permission_denied`, `bad_request`; `timeout` after 10 s
   */
  async presence(user?: string): Promise<Presence> {
    const ask = () => this.#connection.request('presence-get', { user }, PRESENCE_MS);
    const isWorthIt = (error: RelayError): boolean => error.retryable || error.mayHaveHappened;
    const { devices, methods } = await this.#repeater.repeat({ timeoutMs: PRESENCE_MS }, ask, isWorthIt);
    return { devices, methods } as Presence;
  }

  /**
   * Ends everything: loops end, what waits to be published or called fails, methods are unregistered, the store holds the
   * place. Rooms stay in the store; what was not handled yet comes again after the next start. Idempotent.
   */
  close(): Promise<void> {
    return this.#close(undefined);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  // --- start and end

  async #start(): Promise<void> {
    const place = await this.#keeper.load();
    if (this.#stop.signal.aborted) return;
    if (place === 'damaged') this.#resyncDue = 'lost';
    else if (place === undefined) this.#resyncDue = 'new';
    else {
      if (place.position !== undefined) this.#progress.restore(place.position);
      this.#intake.received = place.position;
      for (const [name, from] of place.rooms) {
        const behind = from ?? place.position;
        if (behind !== undefined) this.#remembered.set(name, behind);
      }
      for (const room of this.#rooms.values()) this.#recall(room);
    }
    this.#keeper.open();
    flushOnPageHide(this.#keeper, this.#stop.signal);
    this.#connection.start();
  }

  async #connected(isRecovered: boolean): Promise<void> {
    const { session } = this.#connection;
    this.#intake.begin(isRecovered);
    await this.#membership.connected(isRecovered);
    if (session !== this.#connection.session) return;
    if (!this.#intake.isLagging) this.#setStatus({ state: 'live' });
    this.#tellResync();
  }

  #take(event: string, args: readonly unknown[]): void {
    if (this.#registrations.take(event, args)) return;
    // nobody else may publish one of that name
    if (event === 'presence') this.#emitter.emit('presence', args[0] as PresenceChange);
    this.#intake.take(event, args);
  }

  #close(error: RelayError | undefined): Promise<void> {
    this.#closed ??= this.#end(error);
    return this.#closed;
  }

  async #end(error: RelayError | undefined): Promise<void> {
    this.#stop.abort();
    const closing = this.#connection.close(error);
    this.#repeater.close();
    this.#registrations.close(this.#connection.closedError());
    // a fault ends the connection from inside its own loop
    if (!error) await closing;
    this.#setStatus({ state: 'closed', ...(error && { error }) });
    for (const room of this.#rooms.values()) room.end({ error, isHandled: false }, this.#connection.closedError());
    await this.#keeper.close();
  }

  // --- rooms

  #open(room: Room<Events>, from: string | undefined): void {
    this.#rooms.set(room.name, room);
    if (from === undefined) this.#recall(room);
    else {
      this.#remembered.delete(room.name);
      room.catchUp(from, from);
    }
    this.#membership.added(room);
  }

  /** Where an earlier run was. */
  #recall(room: Room<Events>): void {
    const from = this.#remembered.get(room.name);
    this.#remembered.delete(room.name);
    if (from === undefined || room.from !== undefined) return;
    if (this.#missed.delete(room.name)) this.#resync('lost');
    else room.catchUp(from, from);
  }

  async #handle(subscription: Subscription<Events>, onEvent: (event: RelayEvent<Events>) => unknown): Promise<void> {
    try {
      for await (const event of subscription) {
        try {
          await onEvent(event);
        } catch (cause) {
          this.#tell(new RelayError('internal', `a handler of ${JSON.stringify(subscription.room)} failed`, { cause }));
        }
      }
    } catch {
      // the relay refused the room, or the client was closed by a fault: told by `error` or `status`
    }
  }

  async #unsubscribe(room: Room<Events>, subscription: Subscription<Events>): Promise<void> {
    if (!room.subscriptions.delete(subscription)) return;
    subscription.end({ isHandled: true }, new RelayError('cancelled', 'it was unsubscribed before'));
    this.#taken();
    if (room.subscriptions.size > 0 || this.#rooms.get(room.name) !== room) return;
    this.#rooms.delete(room.name);
    this.#keeper.changed();
    if (!this.#closed) await this.#membership.removed(room.name);
  }

  /** A consumer has taken one more, or is gone. What was left in the log is fetched when all buffers have space. */
  #taken(): void {
    if (!this.#intake.isLagging || !this.#connection.isConnected) return;
    for (const room of this.#rooms.values()) if (!room.hasSpace) return;
    this.#connection.reconnect(new RelayError('slow_consumer'));
  }

  #storedRooms(): Map<string, string | null> {
    const stored = new Map<string, string | null>(this.#remembered);
    for (const room of this.#rooms.values()) stored.set(room.name, room.storedAt(this.#progress.position));
    return stored;
  }

  // --- what the application is told

  #resync(reason: Resync['reason']): void {
    if (this.#resyncDue !== 'lost') this.#resyncDue = reason;
    // until then not all rooms are back, and the state could be fetched before them
    if (this.#status.state !== 'connecting') this.#tellResync();
  }

  #tellResync(): void {
    const reason = this.#resyncDue;
    this.#resyncDue = undefined;
    if (reason) this.#emitter.emit('resync', { reason });
  }

  #tell(error: RelayError): void {
    if (!this.#emitter.emit('error', error)) console.error('holdfast:', error);
  }

  #setStatus(status: Status): void {
    const { state } = this.#status;
    if (state === 'closed' || (state === 'live' && status.state === 'live')) return;
    this.#status = status;
    this.#emitter.emit('status', status);
  }
}

/** A page that goes away runs no timer any more; a web store is written at once. */
function flushOnPageHide(keeper: PlaceKeeper, signal: AbortSignal): void {
  const target = globalThis as { addEventListener?: (type: string, listener: () => void, options: object) => void };
  target.addEventListener?.('pagehide', () => void keeper.flush(), { signal });
}
