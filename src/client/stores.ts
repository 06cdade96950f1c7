import { RelayError } from '../core/errors.js';

/**
 * Where a client keeps its place, one text of about 100 bytes and 40 for each room. One client at a time writes to a store.
 * What either method throws is told by the client's `error` event; it goes on without.
 */
export interface Store {
  /** The text last saved; `undefined` if there is none. */
  load(): string | undefined | Promise<string | undefined>;
  /** Replaces it: after a crash in the middle either the old or the new text is there. */
  save(text: string): void | Promise<void>;
}

/** What `localStorage` and `sessionStorage` have. */
export interface WebStorage {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

/** Ends with the process: the client resumes over reconnects, and after a restart begins anew. The default. */
export function memoryStore(): Store {
  let text: string | undefined;
  return {
    load: () => text,
    save: (next) => {
      text = next;
    },
  };
}

/**
 * In the browser's storage, under `key`. `sessionStorage` gives each tab its own place over reloads; `localStorage` (default)
 * outlives the browser, and then only one tab may use the key: whoever writes second hears `conflict`.
 */
export function webStore(key: string, storage = (globalThis as { localStorage?: WebStorage }).localStorage): Store {
  if (!storage) throw new RelayError('bad_request', 'webStore: this environment has no localStorage');
  let last: string | null = null;
  return {
    load: () => {
      last = storage.getItem(key);
      return last ?? undefined;
    },
    save: (text) => {
      if (storage.getItem(key) !== last)
        throw new RelayError('conflict', `another tab writes to ${JSON.stringify(key)}`);
      storage.setItem(key, text);
      last = text;
    },
  };
}
