/** A request as a daemon gets it. */
export interface DaemonRequest {
  /** The same for every delivery of one call, and for no other call. */
  readonly id: string;
  readonly method: string;
  readonly params: unknown;
  /** In ms since 1970, by Redis's clock. */
  readonly deadline: number;
  /** 1, and more if a worker died over it. */
  readonly attempt: number;
}

export type DaemonAnswer =
  | { readonly ok: true; readonly result: unknown }
  | { readonly ok: false; readonly error: string };

/** Whoever runs a user's methods: a connected socket, or a worker of a back end. */
export interface Daemon {
  /** Unique among connections, not only among clients: a client that comes back is another one. */
  readonly id: string;
  readonly tenant: string;
  readonly user: string;
  /** It has much to read, and should get nothing more just now. */
  readonly isLoaded?: boolean;
  /** Calls `answer` at most once, within `leftMs` or never. */
  deliver(request: DaemonRequest, leftMs: number, answer: (answer: DaemonAnswer) => void): void;
  /** Nobody waits for that request any more. */
  giveUp(id: string, reason: 'cancelled' | 'timeout'): void;
  /** A registration that was `late` is there now. */
  onRegistered?(method: string): void;
  /** A newer registration has this method now. */
  onReplaced(method: string): void;
}

/**
 * Whether a request that was sent once may be sent again. `true`: its deduplication outlives its process. A text: the instance
 * that remembers what it ran. `false`: it can't tell.
 */
export type Dedupe = string | boolean;

const DURABLE = 'durable';
const RAW = 'raw';

/** As registry and call keep it. Escaped, so that nothing in it ends a field. */
export function instanceOf(dedupe: Dedupe): string {
  if (dedupe === true) return DURABLE;
  return dedupe === false ? RAW : `i:${encodeURIComponent(dedupe)}`;
}

/** `now` may get a request that `before` was sent. */
export function mayHaveAgain(now: string, before: string): boolean {
  return now === DURABLE || (now !== RAW && now === before);
}
