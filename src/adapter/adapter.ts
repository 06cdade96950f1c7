import type { Namespace, Socket } from 'socket.io';
import { Adapter, type BroadcastFlags, type BroadcastOptions, MessageType } from 'socket.io-adapter';
import { PacketType } from 'socket.io-parser';
import { RelayError } from '../core/errors.js';
import { Outbox, type PacketEncoder } from '../gateway/outbox.js';
import { Subscriber } from '../gateway/subscriber.js';
import { type EntryHeader, encodeEntry, encodeHeader, type NewHeader } from '../wire/envelope.js';
import { encodeArguments, parse, stringify } from './codec.js';
import { ownEncoderOf } from './encoders.js';
import type { AdapterHost, Guest } from './host.js';
import type { AdapterSettings } from './options.js';
import { Recovery } from './recovery.js';
import { Requests } from './requests.js';
import { type Room, RoomKeys } from './room-keys.js';
import type { AdapterSession } from './session.js';
import {
  adapterInternals,
  describeSocket,
  type NamespaceInternals,
  namespaceInternals,
  type Packet,
  socketInternals,
} from './socket-io-internals.js';
import { volatileFields } from './streams-format.js';

/** A broadcast waits that long for a log that is being opened. */
const OPEN_MS = 2000;
const MAX_HEADERS = 1000;

/** One connected socket, as this adapter knows it. */
interface Member {
  readonly subscriber: Subscriber;
  /** Of a server that recovers connections. */
  readonly session: AdapterSession | undefined;
}

type Message = Readonly<Record<string, unknown>>;

/**
 * A Socket.IO adapter whose broadcasts, joins, leaves and disconnects are entries of the log: each server applies them, its
 * own too, as they come back from it, so all sockets everywhere see one order. Questions and packets with acks go to the
 * other servers' inboxes.
 */
export class HoldfastAdapter extends Adapter implements Guest {
  /** Open `fetchSockets` and `serverSideEmit`. */
  readonly requests: Requests;
  /** Open broadcasts with acks. */
  readonly ackRequests: Requests;
  readonly #keys: RoomKeys;
  readonly #ownEncoder: PacketEncoder | undefined;
  readonly #headers = new Map<Room, string>();
  readonly #members = new Map<string, Member>();
  /** Connected before the log was open: they have no place in it yet. */
  readonly #unplaced = new Set<Socket>();
  readonly #recovery: Recovery | undefined;
  readonly #onConnect = (socket: Socket): void => this.#connected(socket);
  readonly #createSocket: NamespaceInternals['_createSocket'] | undefined;
  /** Offset of the join that is being applied. */
  #joinAt: number | undefined;

  constructor(
    override readonly nsp: Namespace,
    private readonly host: AdapterHost,
    private readonly settings: AdapterSettings,
  ) {
    super(nsp);
    this.#keys = new RoomKeys(nsp.name);
    this.#ownEncoder = ownEncoderOf(nsp.server.encoder);
    const others = (): Promise<readonly string[]> => host.others();
    this.requests = new Requests(others);
    this.ackRequests = new Requests(others);
    if (host.recoveryWindowMs > 0) this.#recovery = new Recovery({ host, settings, namespace: nsp.name });
    nsp.prependListener('connect', this.#onConnect);
    this.#createSocket = this.#wrapHandshake();
    const internals = adapterInternals(this);
    const { apply } = internals;
    // whatever is written to a socket comes after what was dispatched for it
    internals.apply = (opts, callback) =>
      apply.call(this, opts, (socket) => {
        this.#flush(socket.id);
        callback(socket);
      });
    host.receive(nsp.name, this);
  }

  // --- broadcasts

  /** @throws {TypeError} for what JSON can't hold, as in a server without adapter */
  override broadcast(packet: Packet, opts: BroadcastOptions): void {
    const { flags = {} } = opts;
    // with recovery `socket.emit` comes here too, and its ack belongs to this server's socket
    if (flags.local || packet.id !== undefined) return this.#inTurn(packet, (kept) => this.#unlogged(kept, opts));
    if (flags.volatile) return this.#volatile(packet, opts);
    const { payload, attachments } = encodeArguments(packet.data);
    void this.#append('event', opts, undefined, { payload, attachments }, () => this.#unlogged(packet, opts));
  }

  override addSockets(opts: BroadcastOptions, rooms: Room[]): Promise<void> | void {
    if (opts.flags?.local) return super.addSockets(opts, rooms as string[]);
    return this.#append('join', opts, rooms, undefined, () => super.addSockets(opts, rooms as string[]));
  }

  override delSockets(opts: BroadcastOptions, rooms: Room[]): Promise<void> | void {
    if (opts.flags?.local) return super.delSockets(opts, rooms as string[]);
    return this.#append('leave', opts, rooms, undefined, () => super.delSockets(opts, rooms as string[]));
  }

  override disconnectSockets(opts: BroadcastOptions, close: boolean): Promise<void> | void {
    if (opts.flags?.local) return this.host.afterOwn(this.#partition, () => super.disconnectSockets(opts, close));
    return this.#append('disconnect', opts, close, undefined, () => super.disconnectSockets(opts, close));
  }

  /** Resolves when the log has it, or when it is known that it hasn't. */
  #append(
    kind: EntryHeader['kind'],
    { rooms, except }: BroadcastOptions,
    operand: unknown,
    { payload, attachments }: { payload: string; attachments: readonly Buffer[] } = { payload: '', attachments: [] },
    locally: () => void,
  ): Promise<void> {
    const { host } = this;
    const keys = this.#keys;
    const isToOneRoom = kind === 'event' && rooms.size === 1 && !except?.size;
    const body = isToOneRoom
      ? this.#headerTo(rooms.values().next().value as Room) + payload
      : encodeEntry(
          { ...this.#header, kind, rooms: keys.targets(rooms), except: keys.keysOf(except), operand },
          payload,
        );
    const append = (): Promise<unknown> => host.append(this.nsp.name, body, attachments);
    const appended = host.isOpen
      ? append()
      : host.whenOpen(OPEN_MS).then((isOpen) => (isOpen ? append() : Promise.reject(new RelayError('unavailable'))));
    return appended.then(
      () => {},
      (error: unknown) => {
        const isUnknown = error instanceof RelayError && error.mayHaveHappened;
        const isLocal = !isUnknown && this.settings.whenUnavailable === 'local';
        host.counts.unlogged.inc({ outcome: isUnknown ? 'unknown' : isLocal ? 'local' : 'dropped' });
        if (isLocal) locally();
      },
    );
  }

  /** The same for all events to one room: most are. */
  #headerTo(room: Room): string {
    let header = this.#headers.get(room);
    if (header === undefined) {
      if (this.#headers.size >= MAX_HEADERS) this.#headers.clear();
      header = encodeHeader({ ...this.#header, rooms: [this.#keys.keyOf(room)] });
      this.#headers.set(room, header);
    }
    return header;
  }

  get #header(): Pick<NewHeader, 'namespace' | 'publisher' | 'id'> {
    return { namespace: this.nsp.name, publisher: this.host.processId, id: '' };
  }

  /** To sockets of this server only, at once. */
  #unlogged(packet: Packet, opts: BroadcastOptions): void {
    if (!this.#recovery || !endsInText(packet)) return super.broadcast(packet, opts);
    // a stock client takes the text for its position: each gets its own behind it
    const { volatile, compress } = (opts.flags ?? {}) as BroadcastFlags;
    adapterInternals(this).apply(opts, (socket) => {
      socketInternals(socket).notifyOutgoingListeners(packet);
      socketInternals(socket).packet({ type: PacketType.EVENT, data: [...packet.data] }, { volatile, compress });
    });
  }

  /** Behind what this server has broadcast before, as the packet is now. */
  #inTurn(packet: Packet, run: (packet: Packet) => void): void {
    let kept = packet;
    let hasRun = false;
    this.host.afterOwn(this.#partition, () => {
      hasRun = true;
      run(kept);
    });
    // whoever emitted it may change its arguments meanwhile
    if (!hasRun) kept = { ...packet, data: parse(stringify(packet.data)) as unknown[] };
  }

  #volatile(packet: Packet, opts: BroadcastOptions): void {
    const data = stringify(packet.data);
    const { host } = this;
    this.#inTurn(packet, (kept) => {
      const message = { kind: 'volatile', data, ...this.#targets(opts), after: this.#after };
      host
        .recentOthers()
        .then((others) => this.#sendAll(others, message))
        .catch(() => {});
      host.bridge?.writeBeside(this.nsp.name, volatileFields(this.nsp.name, kept.data, opts));
      this.#unlogged(kept, opts);
    });
  }

  override broadcastWithAck(
    packet: Packet,
    opts: BroadcastOptions,
    onCount: (clientCount: number) => void,
    onAck: (...args: unknown[]) => void,
  ): void {
    const { host } = this;
    const others = host.others();
    const counting = this.#countOld();
    const data = stringify(packet.data);
    const timeoutMs = (opts.flags as { timeout?: number } | undefined)?.timeout ?? 0;
    if (opts.flags?.local) {
      this.#inTurn(packet, (kept) => super.broadcastWithAck(kept, opts, onCount, onAck));
      // the server count says all of them
      Promise.all([others, counting])
        .then(([ids, old]) => {
          for (let i = ids.length + old; i > 0; i--) onCount(0);
        })
        .catch(() => {});
      return;
    }
    this.#inTurn(packet, (kept) => {
      // encoding it takes its binary parts out
      const toOld = { packet: { type: PacketType.EVENT, data: kept.data }, opts: this.#targets(opts) };
      super.broadcastWithAck(kept, opts, onCount, onAck);
      others
        .then((ids) => {
          if (ids.length === 0) return;
          const onAnswer = (answer: unknown): void => {
            const { count, value } = answer as { count?: number; value?: string };
            if (typeof count === 'number') onCount(count);
            else onAck(value === undefined ? undefined : parse(value));
          };
          const asked = { asked: new Set(ids), onAnswer, onAbsent: () => onCount(0), onTimeout: () => {} };
          const request = this.ackRequests.open(asked, timeoutMs);
          this.#sendAll(ids, { kind: 'broadcast', request, data, ...this.#targets(opts), after: this.#after });
        })
        // whoever emitted hears of the time-out
        .catch(() => host.counts.requests.inc({ outcome: 'unavailable' }));
      counting
        .then((counted) =>
          host.bridge?.requests.broadcast(this.nsp.name, toOld, { counted, timeoutMs }, onCount, onAck),
        )
        .catch(() => host.counts.requests.inc({ outcome: 'unavailable' }));
    });
  }

  // --- questions

  override async serverCount(): Promise<number> {
    const [own, old] = await Promise.all([this.host.count(), this.#countOld()]);
    return own + old;
  }

  /** Servers on the other side of a bridge. */
  #countOld(): Promise<number> {
    return this.host.bridge?.requests.count(this.nsp.name) ?? Promise.resolve(0);
  }

  /** Answers of those servers, to one question. */
  async #askOld(
    type: MessageType,
    data: object,
    timeoutMs: number,
  ): Promise<readonly Readonly<Record<string, unknown>>[]> {
    const answers = await this.host.bridge?.requests.ask(this.nsp.name, type, data, timeoutMs);
    return (answers ?? []).map((answer) => answer.data);
  }

  /** Rejects when Redis can't say who is there, or when one of them doesn't answer in time. */
  override async fetchSockets(opts: BroadcastOptions): Promise<unknown[]> {
    if (opts.flags?.local) return super.fetchSockets(opts);
    const { host, settings } = this;
    const others = await host.others();
    await new Promise<void>((resolve) => host.afterOwn(this.#partition, resolve));
    const sockets: unknown[] = await super.fetchSockets(opts);
    const timeoutMs = (opts.flags as { timeout?: number } | undefined)?.timeout ?? settings.requestsTimeout;
    const [old] = await Promise.all([
      this.#askOld(MessageType.FETCH_SOCKETS, { opts: this.#targets(opts) }, timeoutMs),
      this.#askAll(others, timeoutMs, { kind: 'fetch', ...this.#targets(opts) }, (answer) =>
        sockets.push(...(answer as unknown[])),
      ),
    ]);
    for (const answer of old) sockets.push(...(answer.sockets as unknown[]));
    return sockets;
  }

  override serverSideEmit(packet: unknown[]): void {
    const ack = packet.at(-1);
    const { host, settings } = this;
    if (typeof ack !== 'function') {
      const data = stringify(packet);
      host
        .others()
        .then((others) => this.#sendAll(others, { kind: 'emit', data }))
        .catch(() => host.counts.requests.inc({ outcome: 'unavailable' }));
      host.bridge?.requests
        .tell(this.nsp.name, { packet })
        .catch(() => host.counts.requests.inc({ outcome: 'unavailable' }));
      return;
    }
    const args = packet.slice(0, -1);
    const data = stringify(args);
    const responses: unknown[] = [];
    host
      .others()
      .then((others) =>
        Promise.all([
          this.#askAll(others, settings.requestsTimeout, { kind: 'emit', data }, (answer) => responses.push(answer)),
          this.#askOld(MessageType.SERVER_SIDE_EMIT, { packet: args }, settings.requestsTimeout).then((old) =>
            responses.push(...old.map((answer) => answer.packet)),
          ),
        ]),
      )
      .then(
        () => ack(null, responses),
        (error: unknown) => ack(error, responses),
      );
  }

  /** Resolves when all have answered, or are gone. */
  #askAll(
    others: readonly string[],
    timeoutMs: number,
    message: object,
    onAnswer: (answer: unknown) => void,
  ): Promise<void> {
    if (others.length === 0) return Promise.resolve();
    const { counts } = this.host;
    return new Promise((resolve, reject) => {
      let answers = 0;
      const asked = new Set(others);
      const check = (): void => {
        if (asked.size > 0) return;
        this.requests.close(request);
        counts.requests.inc({ outcome: 'answered' });
        resolve();
      };
      const request = this.requests.open(
        {
          asked,
          onAnswer: (answer) => {
            answers++;
            onAnswer(parse((answer as { value: string }).value));
            check();
          },
          onAbsent: check,
          onTimeout: () => {
            counts.requests.inc({ outcome: 'timeout' });
            reject(new Error(`timeout reached: only ${answers} responses received out of ${answers + asked.size}`));
          },
        },
        timeoutMs,
      );
      this.#sendAll(others, { ...message, request, after: this.#after });
    });
  }

  #sendAll(processes: readonly string[], message: object): void {
    for (const process of processes) this.#send(process, message);
  }

  #send(process: string, message: object): void {
    this.host
      .send(process, this.nsp.name, message)
      .catch(() => this.host.counts.requests.inc({ outcome: 'unavailable' }));
  }

  #targets({ rooms, except, flags }: BroadcastOptions): object {
    return { rooms: [...rooms], except: [...(except ?? [])], flags };
  }

  /** What others must have dispatched before they look at a message of ours. */
  get #after(): object {
    if (!this.host.isOpen) return {};
    const { epoch, offset } = this.host.log.newest(this.#partition);
    return { epoch, offset };
  }

  // --- what others ask

  onMessage(from: string, message: Message): void {
    const { kind, answers, request } = message;
    if (typeof answers === 'string') return this.#onAnswer(from, answers, message);
    const opts = optionsOf(message);
    const answer = (answered: object): void => this.#send(from, { answers: request, ...answered });
    const { epoch, offset } = (message.after ?? {}) as { epoch?: unknown; offset?: unknown };
    const place = { epoch: String(epoch ?? ''), offset: Number(offset ?? 0) };
    this.host.after(this.#partition, place, () => {
      switch (kind) {
        case 'volatile':
          return this.#unlogged(packetOf(message), opts);
        case 'broadcast':
          return super.broadcastWithAck(
            packetOf(message),
            opts,
            (count) => answer({ count }),
            (value: unknown) => answer(value === undefined ? {} : { value: stringify(value) }),
          );
        case 'fetch':
          return void super
            .fetchSockets(opts)
            .then((sockets) => answer({ value: `[${(sockets as Socket[]).map(describeSocket)}]` }));
        case 'emit':
          return this.#onEmit(parse(String(message.data)) as unknown[], request === undefined ? undefined : answer);
      }
    });
  }

  #onAnswer(from: string, id: string, message: Message): void {
    for (const requests of [this.requests, this.ackRequests]) {
      if (message.kind === 'absent') requests.absent(id, from);
      // of a broadcast come one count, and then acks
      else requests.answer(id, from, message, requests === this.requests || message.count !== undefined);
    }
  }

  #onEmit(args: unknown[], answer: ((answered: object) => void) | undefined): void {
    const { _onServerSideEmit } = namespaceInternals(this.nsp);
    if (!answer) return _onServerSideEmit.call(this.nsp, args);
    let hasAnswered = false;
    const ack = (value: unknown): void => {
      if (hasAnswered) return;
      hasAnswered = true;
      answer({ value: stringify(value ?? null) });
    };
    _onServerSideEmit.call(this.nsp, [...args, ack]);
  }

  // --- sockets and rooms

  override addAll(id: string, rooms: Set<Room>): void {
    super.addAll(id, rooms as Set<string>);
    const member = this.#members.get(id);
    if (member) {
      const { hub } = this.host;
      const { subscriber, session } = member;
      for (const room of rooms)
        hub.join(subscriber, this.#keys.keyOf(room), this.#joinAt ?? hub.joinPosition(subscriber).offset);
      if (session) this.host.touch(session);
    } else if (rooms.has(id)) {
      // Socket.IO's own room comes last, immediately before CONNECT
      const socket = this.nsp.sockets.get(id);
      if (socket && this.host.isOpen) this.#place(socket);
      else if (socket) this.#unplaced.add(socket);
    }
  }

  override del(id: string, room: Room): void {
    super.del(id, room as string);
    const member = this.#members.get(id);
    if (!member) return;
    this.host.hub.leave(member.subscriber, this.#keys.keyOf(room));
    if (member.session) this.host.touch(member.session);
  }

  override delAll(id: string): void {
    const member = this.#members.get(id);
    super.delAll(id);
    for (const socket of this.#unplaced) if (socket.id === id) this.#unplaced.delete(socket);
    if (!member) return;
    this.#members.delete(id);
    const { host } = this;
    if (!member.session) return host.hub.remove(member.subscriber);
    host.sessions.delete(member.session.owner);
    host.track(member.session.end(host.hub));
  }

  /** Gives a socket its place in the log: its own, if it comes back, else the newest. */
  #place(socket: Socket): Member {
    const { host } = this;
    const { hub } = host;
    const partition = this.#partition;
    const resumed = this.#recovery?.take(socket);
    const place = resumed?.place ?? hub.newest(partition);
    const subscriber = new Subscriber(new Outbox(socket, this.#ownEncoder), { partition, ...place });
    subscriber.hearsPositions = this.#recovery !== undefined;
    subscriber.onControl = (header, at) => this.#control(socket, subscriber, header, at.offset);
    subscriber.join(this.#keys.everyone, resumed ? 0 : place.offset);
    const now = hub.joinPosition(subscriber).offset;
    for (const room of this.sids.get(socket.id) ?? [])
      subscriber.join(this.#keys.keyOf(room), resumed ? (resumed.joins.get(room) ?? now) : place.offset);
    this.#orderPackets(socket, subscriber);
    const session = this.#recovery?.open(socket, subscriber, this.#keys, resumed?.owner);
    const member = { subscriber, session };
    this.#members.set(socket.id, member);
    hub.greet(subscriber, this.nsp.name);
    return member;
  }

  /** CONNECT was written, and no handler of the application has run. */
  #connected(socket: Socket): void {
    const member = this.#members.get(socket.id);
    if (member && member.subscriber.state !== 'closed') this.#begin(member);
  }

  #begin({ subscriber }: Member): void {
    const { hub } = this.host;
    const gap = hub.carryOver(subscriber);
    if (gap) hub.tellGap(subscriber, gap);
    hub.add(subscriber);
  }

  onOpen(): void {
    for (const socket of this.#unplaced) if (socket.connected) this.#begin(this.#place(socket));
    this.#unplaced.clear();
  }

  #flush(id: string): void {
    const member = this.#members.get(id);
    if (member) this.host.hub.flush(member.subscriber);
  }

  /** What the application emits to one socket comes after what was dispatched for it, and never passes for a position. */
  #orderPackets(socket: Socket, subscriber: Subscriber): void {
    const { hub } = this.host;
    const internals = socketInternals(socket);
    const send = internals.packet.bind(socket);
    internals.packet = (packet, opts) => {
      hub.flush(subscriber);
      const mustPlace = this.#recovery && endsInText(packet) && !String(packet.data[0]).startsWith('holdfast:');
      send(mustPlace ? { ...packet, data: [...packet.data, hub.positionOf(subscriber)] } : packet, opts);
    };
  }

  /** An entry that moves or ends a socket, in its place among the events. */
  #control(socket: Socket, subscriber: Subscriber, { kind, operand }: EntryHeader, offset: number): void {
    if (kind === 'disconnect') return void socket.disconnect(operand === true);
    const rooms = (Array.isArray(operand) ? operand : []) as string[];
    if (kind === 'join') {
      this.#joinAt = offset;
      void socket.join(rooms);
      this.#joinAt = undefined;
      return;
    }
    // it joined after this
    for (const room of rooms)
      if ((subscriber.joins.get(this.#keys.keyOf(room)) ?? 0) <= offset) void socket.leave(room);
  }

  get #partition(): number {
    return this.host.partitionOf(this.nsp.name);
  }

  // --- recovery

  override persistSession({ sid }: { sid: string }): void {
    const session = this.#members.get(sid)?.session;
    if (session) session.isRecoverable = true;
  }

  override async restoreSession(pid: string, offset: string): ReturnType<Adapter['restoreSession']> {
    return (await this.#recovery?.restore(pid, offset, this.#partition, this.nsp)) ?? (null as never);
  }

  /** A handshake waits a moment for the log; and what a client may resume with is taken out of what others are shown. */
  #wrapHandshake(): NamespaceInternals['_createSocket'] | undefined {
    const internals = namespaceInternals(this.nsp);
    const create = internals._createSocket;
    if (typeof create !== 'function') return undefined;
    internals._createSocket = async (client, auth) => {
      await this.host.whenOpen(OPEN_MS);
      const socket = await create.call(this.nsp, client, this.#recovery ? Recovery.completed(auth) : auth);
      if (this.#recovery) Recovery.hideSecrets(socket);
      return socket;
    };
    return create;
  }

  /** Resolves when nothing of it is left. */
  override async close(): Promise<void> {
    this.nsp.off('connect', this.#onConnect);
    if (this.#createSocket) namespaceInternals(this.nsp)._createSocket = this.#createSocket;
    this.requests.stop();
    this.ackRequests.stop();
    for (const id of [...this.#members.keys()]) this.delAll(id);
    await this.host.dismiss(this.nsp.name, this);
  }
}

function endsInText({ type, id, data }: Packet): boolean {
  return type === PacketType.EVENT && id === undefined && typeof data.at(-1) === 'string';
}

function packetOf({ data }: Message): Packet {
  return { type: PacketType.EVENT, data: parse(String(data)) as unknown[] };
}

function optionsOf({ rooms, except, flags }: Message): BroadcastOptions {
  const set = (value: unknown): Set<string> => new Set(Array.isArray(value) ? (value as string[]) : []);
  return { rooms: set(rooms), except: set(except), flags: (flags ?? {}) as BroadcastFlags };
}
