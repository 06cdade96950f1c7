/** One row, by column. `int8` comes as a text from one engine and as a number from the other: cast it in the statement. */
export type Row = Readonly<Record<string, unknown>>;

export interface Query {
  /**
   * @param text one statement with `$1` …, or several without values
   * @throws what the engine says: with a SQLSTATE in `code` where the server refused, see `sqlState`
   */
  query(text: string, values?: readonly unknown[]): Promise<readonly Row[]>;
}

export interface Listening {
  /** Resolves when the connection still answers; rejects when it doesn't, within a second. */
  prove(): Promise<void>;
  close(): Promise<void>;
}

/**
 * What admission needs of Postgres: a server's, or one inside this process.
 *
 * Every statement ends, with an answer or an error, within about 1.7 s of being asked for (0.7 s to connect, 1 s to run).
 */
export interface Database extends Query {
  /** Host and port, or folder; without secrets. */
  readonly place: string;
  /** At most so many statements are under way at once. */
  readonly size: number;
  /**
   * A statement whose connection is destroyed, so that the server ends it, when `signal` aborts.
   *
   * @throws the signal's reason then
   */
  queryUntil(signal: AbortSignal, text: string, values?: readonly unknown[]): Promise<readonly Row[]>;
  /** All of `work` or nothing. `work` uses what it is given, and nothing else. */
  transaction<T>(work: (query: Query) => Promise<T>): Promise<T>;
  /**
   * Hears `NOTIFY <channel>` over a connection of its own. Resolves once the server has taken the `LISTEN`.
   *
   * @param onLost the connection is gone; nothing is heard any more
   */
  listen(channel: string, onNotice: (payload: string) => void, onLost: () => void): Promise<Listening>;
  /** One answer over a connection that nothing else uses; for whoever asks how the server is. */
  ping(): Promise<void>;
  close(): Promise<void>;
}

/** The five characters with which a server says why it refused; `undefined`: nothing came from a server. */
export function sqlState(error: unknown): string | undefined {
  const code = error instanceof Error ? (error as { code?: unknown }).code : undefined;
  return typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) && !/^E[A-Z]{4}$/.test(code) ? code : undefined;
}
