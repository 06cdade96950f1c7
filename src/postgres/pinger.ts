import { Client } from 'pg';
import { within } from '../core/sleep.js';
import { closeClient, destroyClient, type ServerOptions, servingConfig } from './client.js';

/** Below the 1 s that whoever asks for the state of dependencies is promised. */
const ANSWER_MS = 900;

/**
 * One question to the server over a connection that nothing else uses. It is kept for the next question, so a server
 * without a free connection still answers, and a pool that is exhausted is no outage.
 */
export class Pinger {
  readonly #options: ServerOptions;
  #client: Client | undefined;
  #asking: Promise<void> | undefined;

  constructor(options: ServerOptions) {
    this.#options = options;
  }

  /** Within 0.9 s. Who asks while a question is out gets its answer. */
  ask(): Promise<void> {
    this.#asking ??= this.#ask().finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  async close(): Promise<void> {
    const client = this.#client;
    this.#client = undefined;
    if (client) await closeClient(client);
  }

  async #ask(): Promise<void> {
    const client = this.#client ?? this.#make();
    try {
      const answer = await within(ANSWER_MS, this.#answer(client));
      if (!answer) throw new Error(`no answer within ${ANSWER_MS} ms`);
    } catch (error) {
      // one that failed may be half-dead: the next question has a new one
      if (this.#client === client) this.#client = undefined;
      destroyClient(client);
      throw error;
    }
  }

  async #answer(client: Client): Promise<'yes'> {
    if (client !== this.#client) {
      this.#client = client;
      await client.connect();
    }
    await client.query('select 1');
    return 'yes';
  }

  #make(): Client {
    const client = new Client({ ...servingConfig(this.#options), application_name: 'holdfast:ping' });
    client.on('error', () => {
      if (this.#client === client) this.#client = undefined;
      destroyClient(client);
    });
    return client;
  }
}
