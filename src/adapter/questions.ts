import type { Namespace, Socket } from 'socket.io';
import { type BroadcastFlags, type BroadcastOptions, MessageType } from 'socket.io-adapter';
import { PacketType } from 'socket.io-parser';
import { parse, stringify } from './codec.js';
import type { AdapterHost } from './host.js';
import type { AdapterSettings } from './options.js';
import { Requests } from './requests.js';
import { describeSocket, namespaceInternals, type Packet } from './socket-io-internals.js';

type Message = Readonly<Record<string, unknown>>;

/** What this server itself has to say. */
export interface OwnSide {
  fetchSockets(opts: BroadcastOptions): Promise<unknown[]>;
  broadcastWithAck(
    packet: Packet,
    opts: BroadcastOptions,
    onCount: (clientCount: number) => void,
    onAck: (...args: unknown[]) => void,
  ): void;
  unlogged(packet: Packet, opts: BroadcastOptions): void;
  /** Behind what this server has broadcast before, as the packet is now. */
  inTurn(packet: Packet, run: (packet: Packet) => void): void;
}

export interface QuestionsOptions {
  readonly host: AdapterHost;
  readonly settings: AdapterSettings;
  readonly nsp: Namespace;
  readonly own: OwnSide;
}

/**
 * What one namespace asks of other servers, and answers them: `fetchSockets`, `serverSideEmit`, broadcasts with acks. It goes
 * to their inboxes, and behind what the asking server has broadcast before.
 */
export class Questions {
  /** Open `fetchSockets` and `serverSideEmit`. */
  readonly requests: Requests;
  /** Open broadcasts with acks. */
  readonly ackRequests: Requests;

  constructor(private readonly options: QuestionsOptions) {
    const others = (): Promise<readonly string[]> => options.host.others();
    this.requests = new Requests(others);
    this.ackRequests = new Requests(others);
  }

  stop(): void {
    this.requests.stop();
    this.ackRequests.stop();
  }

  // --- asked here

  broadcastWithAck(
    packet: Packet,
    opts: BroadcastOptions,
    onCount: (clientCount: number) => void,
    onAck: (...args: unknown[]) => void,
  ): void {
    const { host } = this.options;
    const data = stringify(packet.data);
    const others = host.others();
    const counting = this.#countOld();
    // they are looked at later, when it is this packet's turn
    for (const asked of [others, counting]) asked.catch(() => {});
    const timeoutMs = (opts.flags as { timeout?: number } | undefined)?.timeout ?? 0;
    if (opts.flags?.local) {
      this.options.own.inTurn(packet, (kept) => this.options.own.broadcastWithAck(kept, opts, onCount, onAck));
      // the server count says all of them
      Promise.all([others, counting])
        .then(([ids, old]) => {
          for (let i = ids.length + old; i > 0; i--) onCount(0);
        })
        .catch(() => {});
      return;
    }
    this.options.own.inTurn(packet, (kept) => {
      // encoding it takes its binary parts out
      const toOld = { packet: { type: PacketType.EVENT, data: kept.data }, opts: targetsOf(opts) };
      this.options.own.broadcastWithAck(kept, opts, onCount, onAck);
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
          this.tell(ids, { kind: 'broadcast', request, data, ...targetsOf(opts), after: this.#after });
        })
        // whoever emitted hears of the time-out
        .catch(() => host.counts.requests.inc({ outcome: 'unavailable' }));
      counting
        .then((counted) =>
          host.bridge?.requests.broadcast(this.options.nsp.name, toOld, { counted, timeoutMs }, onCount, onAck),
        )
        .catch(() => host.counts.requests.inc({ outcome: 'unavailable' }));
    });
  }

  async serverCount(): Promise<number> {
    const [own, old] = await Promise.all([this.options.host.count(), this.#countOld()]);
    return own + old;
  }

  /** Servers on the other side of a bridge. */
  #countOld(): Promise<number> {
    return this.options.host.bridge?.requests.count(this.options.nsp.name) ?? Promise.resolve(0);
  }

  /** Answers of those servers, to one question. */
  async #askOld(
    type: MessageType,
    data: object,
    timeoutMs: number,
  ): Promise<readonly Readonly<Record<string, unknown>>[]> {
    const answers = await this.options.host.bridge?.requests.ask(this.options.nsp.name, type, data, timeoutMs);
    return (answers ?? []).map((answer) => answer.data);
  }

  /** Rejects when Redis can't say who is there, or when one of them doesn't answer in time. */
  async fetchSockets(opts: BroadcastOptions): Promise<unknown[]> {
    if (opts.flags?.local) return this.options.own.fetchSockets(opts);
    const { host, settings } = this.options;
    const others = await host.others();
    await new Promise<void>((resolve) => host.afterOwn(this.options.nsp.name, resolve));
    const sockets: unknown[] = await this.options.own.fetchSockets(opts);
    const timeoutMs = (opts.flags as { timeout?: number } | undefined)?.timeout ?? settings.requestsTimeout;
    const [old] = await Promise.all([
      this.#askOld(MessageType.FETCH_SOCKETS, { opts: targetsOf(opts) }, timeoutMs),
      this.#askAll(others, timeoutMs, { kind: 'fetch', ...targetsOf(opts) }, (answer) =>
        sockets.push(...(answer as unknown[])),
      ),
    ]);
    for (const answer of old) sockets.push(...(answer.sockets as unknown[]));
    return sockets;
  }

  serverSideEmit(packet: unknown[]): void {
    const ack = packet.at(-1);
    const { host, settings } = this.options;
    if (typeof ack !== 'function') {
      const data = stringify(packet);
      host
        .others()
        .then((others) => this.tell(others, { kind: 'emit', data }))
        .catch(() => host.counts.requests.inc({ outcome: 'unavailable' }));
      host.bridge?.requests
        .tell(this.options.nsp.name, { packet })
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
    const { counts } = this.options.host;
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
      this.tell(others, { ...message, request, after: this.#after });
    });
  }

  /** To others, without an answer. */
  tell(processes: readonly string[], message: object): void {
    for (const process of processes) this.#send(process, message);
  }

  #send(process: string, message: object): void {
    const { request } = message as Message;
    this.options.host
      .send(process, this.options.nsp.name, message)
      .then((isThere) => {
        if (!isThere && typeof request === 'string')
          for (const requests of [this.requests, this.ackRequests]) requests.absent(request, process);
      })
      .catch(() => this.options.host.counts.requests.inc({ outcome: 'unavailable' }));
  }

  get #after(): object {
    const { host, nsp } = this.options;
    return host.newestPlace(nsp.name);
  }

  // --- asked by others

  onMessage(from: string, message: Message): void {
    const { kind, answers, request } = message;
    if (typeof answers === 'string') return this.#onAnswer(from, answers, message);
    const opts = optionsOf(message);
    const answer = (answered: object): void => this.#send(from, { answers: request, ...answered });
    const { epoch, offset } = (message.after ?? {}) as { epoch?: unknown; offset?: unknown };
    const place = { epoch: String(epoch ?? ''), offset: Number(offset ?? 0) };
    this.options.host.after(this.options.nsp.name, place, () => {
      switch (kind) {
        case 'volatile':
          return this.options.own.unlogged(packetOf(message), opts);
        case 'broadcast':
          return this.options.own.broadcastWithAck(
            packetOf(message),
            opts,
            (count) => answer({ count }),
            (value: unknown) => answer(value === undefined ? {} : { value: stringify(value) }),
          );
        case 'fetch':
          return void this.options.own
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
    const { _onServerSideEmit } = namespaceInternals(this.options.nsp);
    if (!answer) return _onServerSideEmit.call(this.options.nsp, args);
    let hasAnswered = false;
    const ack = (value: unknown): void => {
      if (hasAnswered) return;
      hasAnswered = true;
      answer({ value: stringify(value ?? null) });
    };
    _onServerSideEmit.call(this.options.nsp, [...args, ack]);
  }
}

/** Which sockets a message of another server is about, as it crosses. */
export function targetsOf({ rooms, except, flags }: BroadcastOptions): object {
  return { rooms: [...rooms], except: [...(except ?? [])], flags };
}

function packetOf({ data }: Message): Packet {
  return { type: PacketType.EVENT, data: parse(String(data)) as unknown[] };
}

function optionsOf({ rooms, except, flags }: Message): BroadcastOptions {
  const set = (value: unknown): Set<string> => new Set(Array.isArray(value) ? (value as string[]) : []);
  return { rooms: set(rooms), except: set(except), flags: (flags ?? {}) as BroadcastFlags };
}
