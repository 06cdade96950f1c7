import type { Namespace, Socket } from 'socket.io';
import { Adapter, type BroadcastFlags, type BroadcastOptions } from 'socket.io-adapter';
import { PacketType } from 'socket.io-parser';
import { RelayError } from '../core/errors.js';
import { Outbox, type PacketEncoder } from '../gateway/outbox.js';
import { Subscriber } from '../gateway/subscriber.js';
import { type EntryHeader, encodeEntry, encodeHeader, type NewHeader } from '../wire/envelope.js';
import { decodeArguments, encodeArguments, parse, stringify } from './codec.js';
import { ownEncoderOf } from './encoders.js';
import type { AdapterHost, Guest } from './host.js';
import type { AdapterSettings } from './options.js';
import { Questions, targetsOf } from './questions.js';
import { Recovery } from './recovery.js';
import type { Requests } from './requests.js';
import { type Room, RoomKeys } from './room-keys.js';
import type { AdapterSession } from './session.js';
import {
  adapterInternals,
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

/**
 * A Socket.IO adapter whose broadcasts, joins, leaves and disconnects are entries of the log: each server applies them, its
 * own too, as they come back from it, so all sockets everywhere see one order. Questions and packets with acks go to the
 * other servers' inboxes.
 */
export class HoldfastAdapter extends Adapter implements Guest {
  readonly #questions: Questions;
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
    const own = {
      fetchSockets: (opts: BroadcastOptions) => super.fetchSockets(opts),
      broadcastWithAck: (...args: Parameters<Adapter['broadcastWithAck']>) => {
        this.#closeSlow(args[1]);
        super.broadcastWithAck(...args);
      },
      unlogged: (packet: Packet, opts: BroadcastOptions) => this.#unlogged(packet, opts),
      inTurn: (packet: Packet, run: (packet: Packet) => void) => this.#inTurn(packet, run),
    };
    this.#questions = new Questions({ host, settings, nsp, own });
    if (host.recoveryWindowMs > 0) this.#recovery = new Recovery(host);
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
    // of what was emitted, whatever became of its arguments since
    const locally = (): void =>
      this.#unlogged({ type: PacketType.EVENT, data: decodeArguments(payload, attachments) }, opts);
    void this.#append('event', opts, undefined, { payload, attachments }, locally);
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
    if (opts.flags?.local) return this.host.afterOwn(this.nsp.name, () => super.disconnectSockets(opts, close));
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
        if (!isLocal) return;
        try {
          locally();
        } catch (thrown) {
          host.complain(thrown);
        }
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
    this.#closeSlow(opts);
    if (!this.#recovery || !endsInText(packet)) return super.broadcast(packet, opts);
    // a stock client takes the text for its position: each gets its own behind it
    const { volatile, compress } = (opts.flags ?? {}) as BroadcastFlags;
    adapterInternals(this).apply(opts, (socket) => {
      socketInternals(socket).notifyOutgoingListeners(packet);
      socketInternals(socket).packet({ type: PacketType.EVENT, data: [...packet.data] }, { volatile, compress });
    });
  }

  /** What is not logged can't be given again later: a client that leaves too much of it unread is closed. */
  #closeSlow(opts: BroadcastOptions): void {
    adapterInternals(this).apply(opts, ({ id }) => {
      const subscriber = this.#members.get(id)?.subscriber;
      if (subscriber?.leavesTooMuch) subscriber.closeAsSlow(this.host.metrics, '1 MiB unread');
    });
  }

  /** Behind what this server has broadcast before, as the packet is now. */
  #inTurn(packet: Packet, run: (packet: Packet) => void): void {
    const { host } = this;
    if (host.isUpToDate(this.nsp.name)) return run(packet);
    // whoever emitted it may change its arguments meanwhile
    const kept = { ...packet, data: parse(stringify(packet.data)) as unknown[] };
    host.afterOwn(this.nsp.name, () => run(kept));
  }

  #volatile(packet: Packet, opts: BroadcastOptions): void {
    const data = stringify(packet.data);
    const { host } = this;
    const [room] = opts.rooms;
    // with recovery `socket.volatile.emit` comes here too
    const isOwn = opts.rooms.size === 1 && this.nsp.sockets.has(room as string);
    this.#inTurn(packet, (kept) => {
      if (isOwn) return this.#unlogged(kept, opts);
      const message = { kind: 'volatile', data, ...targetsOf(opts), after: host.newestPlace(this.nsp.name) };
      host
        .recentOthers()
        .then((others) => this.#questions.tell(others, message))
        .catch(() => {});
      host.bridge?.writeBeside(this.nsp.name, volatileFields(this.nsp.name, kept.data, opts));
      this.#unlogged(kept, opts);
    });
  }

  // --- questions

  /** Open `fetchSockets` and `serverSideEmit`. */
  get requests(): Requests {
    return this.#questions.requests;
  }

  /** Open broadcasts with acks. */
  get ackRequests(): Requests {
    return this.#questions.ackRequests;
  }

  override broadcastWithAck(...args: Parameters<Questions['broadcastWithAck']>): void {
    this.#questions.broadcastWithAck(...args);
  }

  override serverCount(): Promise<number> {
    return this.#questions.serverCount();
  }

  /** Rejects when Redis can't say who is there, or when one of them doesn't answer in time. */
  override fetchSockets(opts: BroadcastOptions): Promise<unknown[]> {
    return this.#questions.fetchSockets(opts);
  }

  override serverSideEmit(packet: unknown[]): void {
    this.#questions.serverSideEmit(packet);
  }

  onMessage(from: string, message: Readonly<Record<string, unknown>>): void {
    this.#questions.onMessage(from, message);
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
    const outbox = new Outbox(socket, {
      encoder: this.#ownEncoder,
      onListenerError: (error) => host.complain(error),
    });
    const subscriber = new Subscriber(outbox, { partition, ...place });
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
      try {
        void socket.join(rooms);
      } finally {
        this.#joinAt = undefined;
      }
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
    this.#questions.stop();
    for (const id of [...this.#members.keys()]) this.delAll(id);
    await this.host.dismiss(this.nsp.name, this);
  }
}

function endsInText({ type, id, data }: Packet): boolean {
  return type === PacketType.EVENT && id === undefined && typeof data.at(-1) === 'string';
}
