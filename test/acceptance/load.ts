import { Agent, request } from 'node:http';
import { type Client, outcomeOf } from '../harness/client.js';
import type { Attempt, Offer, Outcome } from '../harness/ledger.js';
import { TEST_API_KEY } from '../harness/pod.js';

const TICK_MS = 20;
const RETRY_MS = 100;
const GIVE_UP_MS = 40_000;

interface Offered extends Offer {
  readonly attempts: Attempt[];
}

type Send = (event: { readonly room: string; readonly id: string; readonly n: number }) => Promise<Outcome>;

/** Publishes at a steady rate, tries again with the same id until it is accepted, and keeps account of every attempt. */
export class Load {
  readonly offers: Offered[] = [];
  readonly #pending = new Set<Promise<void>>();
  readonly #timer: NodeJS.Timeout;
  readonly #startedAt = performance.now();
  #sent = 0;

  constructor(
    private readonly name: string,
    perSecond: number,
    private readonly roomOf: (n: number) => string,
    private readonly send: Send,
  ) {
    this.#timer = setInterval(() => {
      const due = Math.floor(((performance.now() - this.#startedAt) * perSecond) / 1000);
      while (this.#sent < due) this.#offer(this.#sent++);
    }, TICK_MS);
  }

  /** Offers no more; resolves when every event has its outcome. */
  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await Promise.all(this.#pending);
  }

  #offer(n: number): void {
    const offer: Offered = { id: `${this.name}-${n}`, room: this.roomOf(n), attempts: [] };
    this.offers.push(offer);
    const work = this.#publish(offer, n).finally(() => this.#pending.delete(work));
    this.#pending.add(work);
  }

  async #publish({ id, room, attempts }: Offered, n: number): Promise<void> {
    const giveUpAt = Date.now() + GIVE_UP_MS;
    while (Date.now() < giveUpAt) {
      const startedAt = Date.now();
      const outcome = await this.send({ room, id, n });
      attempts.push({ outcome, startedAt, endedAt: Date.now() });
      if (outcome.kind === 'accepted') return;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

/** By the HTTP API. */
export function httpSender(url: string): Send {
  const agent = new Agent({ keepAlive: true, maxSockets: 32 });
  return ({ room, id, n }) =>
    new Promise((resolve) => {
      const body = JSON.stringify({ room, event: 'tick', data: { n }, id });
      const headers = {
        authorization: `Bearer ${TEST_API_KEY}`,
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(body),
      };
      // no answer at all leaves the outcome unknown
      const sent = request(`${url}/v1/publish`, { method: 'POST', agent, headers, timeout: 5000 }, (response) => {
        let text = '';
        response.setEncoding('utf8');
        response.on('data', (chunk: string) => {
          text += chunk;
        });
        response.on('error', () => resolve({ kind: 'unknown' }));
        response.on('end', () => resolve(outcomeOfAnswer(response.statusCode ?? 0, text)));
      });
      sent.on('timeout', () => sent.destroy());
      sent.on('error', () => resolve({ kind: 'unknown' }));
      sent.end(body);
    });
}

function outcomeOfAnswer(status: number, text: string): Outcome {
  try {
    const answer = JSON.parse(text) as { position?: string; mayHaveHappened?: boolean; code?: string };
    if (status === 200 && answer.position !== undefined) return { kind: 'accepted', position: answer.position };
    // a balancer's own page says nothing of what the relay did
    return { kind: answer.code !== undefined && !answer.mayHaveHappened ? 'refused' : 'unknown' };
  } catch {
    return { kind: 'unknown' };
  }
}

/** By sockets, in turn. */
export function socketSender(clients: readonly Client[]): Send {
  return ({ room, id, n }) => {
    const client = clients[n % clients.length] as Client;
    if (!client.socket.connected) return Promise.resolve({ kind: 'refused' });
    return outcomeOf(client.publish({ room, event: 'tick', data: { n }, id }));
  };
}
