import type { RelayError } from '../core/errors.js';

/** Event name → what its data is. Describe yours, `createClient<{ message: Message }>(…)`, and handlers are typed by it. */
// biome-ignore lint/suspicious/noExplicitAny: without a description, data is the application's business
export type EventMap = { [event: string]: any };

/** One event as the application gets it; `event` tells which of the map's it is. */
export type RelayEvent<Events extends EventMap = EventMap> = {
  [Name in keyof Events & string]: {
    readonly event: Name;
    readonly data: Events[Name];
    readonly room: string;
    /** The publisher's own, or one that the relay made. */
    readonly id: string;
    /** Redis's time when the relay took it, ms since 1970. */
    readonly at: number;
    /** Absent when it is ephemeral, or comes from a catch-up by room: good to know the entry again, not to go on behind it. */
    readonly position: string | undefined;
  };
}[keyof Events & string];

/** Entries that were accepted and are gone, from `from` to `to`, both included; they may be of other rooms too. */
export interface Gap {
  readonly partition: number;
  readonly from: string;
  readonly to: string;
  /** `trimmed`: older than what the log keeps. `epoch`: Redis lost them. */
  readonly reason: 'trimmed' | 'epoch';
}

/**
 * `new`: a first start, there is no state yet. `gap`: something that was missed is gone. `lost`: the relay doesn't know the
 * place that was kept, or it could not be read.
 */
export interface Resync {
  readonly reason: 'new' | 'gap' | 'lost';
}

/**
 * - `connecting`: for the first time or again; `error` says what ended the last try. It goes on by itself.
 * - `live`: connected, and all rooms subscribed.
 * - `lagging`: connected, but a consumer of `room` has a full buffer. What it can't take stays in the log and is fetched when
 *   its buffer is half empty, or empty if it is in a catch-up.
 * - `closed`: for good, by `close()`, or with an `error` that another try can't change.
 */
export type Status =
  | { readonly state: 'connecting'; readonly error?: RelayError }
  | { readonly state: 'live' }
  | { readonly state: 'lagging'; readonly room: string }
  | { readonly state: 'closed'; readonly error?: RelayError };

/** Somebody, as far as the relay knows. */
export interface Presence {
  readonly devices: readonly DevicePresence[];
  /** Registered, with their daemon there or away for a moment. */
  readonly methods: readonly string[];
}

export interface DevicePresence {
  /** Absent: connections whose tokens name none. */
  readonly device?: string;
  /** When the oldest of its connections came, ms since 1970. */
  readonly since: number;
  /** Connections. */
  readonly sockets: number;
}

/** A device of the token's user came online with its first connection, or went with its last. */
export interface PresenceChange {
  readonly user: string;
  readonly device?: string;
  readonly online: boolean;
  /** ms since 1970. */
  readonly at: number;
}

export interface ClientEvents {
  status: Status;
  gap: Gap;
  /** The one moment to fetch state anew. Never for a reconnect that brought everything. */
  resync: Resync;
  /** At most once, and not while the client is away: `presence()` says how it stands. */
  presence: PresenceChange;
  /** What nobody waits for: a handler that threw, a store that fails, a token that can't be had, a room that is refused. */
  error: RelayError;
}
