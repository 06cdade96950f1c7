import { Client } from 'pg';
import { within } from '../core/sleep.js';
import { closeClient, destroyClient, type ServerOptions, servingConfig } from './client.js';
import type { Listening } from './database.js';

const PROOF_MS = 900;

/** `LISTEN` over a connection of its own, for as long as that lives. */
export class Listener implements Listening {
  readonly #client: Client;
  readonly #onLost: () => void;
  #proof: Promise<void> | undefined;
  #isOpen = false;
  #isOver = false;

  private constructor(client: Client, onLost: () => void) {
    this.#client = client;
    this.#onLost = onLost;
  }

  /** Rejects when the connection is lost before it listens; `onLost` is for later. */
  static async open(
    options: ServerOptions,
    channel: string,
    onNotice: (payload: string) => void,
    onLost: () => void,
  ): Promise<Listener> {
    const client = new Client({ ...servingConfig(options), application_name: 'holdfast:listen' });
    const listener = new Listener(client, onLost);
    // a connection that breaks says so twice: both ways end it once
    client.on('error', () => listener.#lose());
    client.on('end', () => listener.#lose());
    client.on('notification', (notice) => {
      if (!listener.#isOver) onNotice(notice.payload ?? '');
    });
    try {
      await client.connect();
      await client.query(`listen ${client.escapeIdentifier(channel)}`);
      // the answer, and the end of the connection right behind it
      if (listener.#isOver) throw new Error('the connection was lost as it began to listen');
      listener.#isOpen = true;
      return listener;
    } catch (error) {
      listener.#isOver = true;
      destroyClient(client);
      throw error;
    }
  }

  /** A connection that doesn't answer is given up, and `onLost` told. */
  prove(): Promise<void> {
    this.#proof ??= this.#prove().finally(() => {
      this.#proof = undefined;
    });
    return this.#proof;
  }

  async close(): Promise<void> {
    this.#isOver = true;
    await closeClient(this.#client);
  }

  async #prove(): Promise<void> {
    if (this.#isOver) throw new Error('the connection is closed');
    try {
      const answer = await within(
        PROOF_MS,
        this.#client.query('select 1').then(() => true),
      );
      if (!answer) throw new Error(`no answer within ${PROOF_MS} ms`);
    } catch (error) {
      this.#lose();
      throw error;
    }
  }

  #lose(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    destroyClient(this.#client);
    if (this.#isOpen) this.#onLost();
  }
}
