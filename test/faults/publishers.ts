import { sleep } from '../../src/core/sleep.js';
import { Load } from '../acceptance/load.js';
import type { Ack, Client, Publication } from '../harness/client.js';
import type { Offer, Outcome } from '../harness/ledger.js';
import { type Pod, TEST_API_KEY } from '../harness/pod.js';

/** What the relay told a publisher. */
export interface Heard {
  readonly id: string;
  readonly pod: string;
  readonly by: 'socket' | 'http';
  readonly room: string;
  /** Without a code and not accepted: no answer at all. */
  readonly code: string | undefined;
  readonly isAccepted: boolean;
  readonly mayHaveHappened: boolean;
  /** ms since 1970 */
  readonly at: number;
  readonly tookMs: number;
}

/** One way to publish. An event that is tried again goes by the same one, because ids are its publisher's own. */
interface Door {
  readonly pod: string;
  readonly by: 'socket' | 'http';
  readonly publish: (publication: Publication) => Promise<Ack | undefined>;
}

export interface PublishersOptions {
  /** Begins the ids of their events. */
  readonly name: string;
  readonly pods: readonly Pod[];
  /** One at each pod, in the order of the pods. */
  readonly clients: readonly Client[];
  readonly roomOf: (n: number) => string;
  /** Events of all together. */
  readonly perSecond: number;
}

type Send = ConstructorParameters<typeof Load>[3];

const HTTP_MS = 5000;
const LAST_TRIES_MS = 30_000;

/** Publishes steadily at every pod, over sockets and HTTP, tries again with the same id, and keeps each answer. */
export class Publishers {
  readonly heard: Heard[] = [];
  readonly #loads: readonly Load[];
  readonly #sends: readonly Send[];
  readonly #again: Offer[] = [];

  constructor({ name: prefix, pods, clients, roomOf, perSecond }: PublishersOptions) {
    const sockets = pods.map(({ name }, n) => socketDoor(name, clients[n] as Client));
    const https = pods.map(httpDoor);
    // over HTTP a pod's events are tried again at the next pod: one publisher, whichever pod it asks
    const ways: readonly (readonly [string, readonly Door[]])[] = [
      ...sockets.map((door) => [`${prefix}-socket-${door.pod}`, [door]] as const),
      ...https.map((door, n) => [`${prefix}-http-${door.pod}`, [...https.slice(n), ...https.slice(0, n)]] as const),
    ];
    this.#sends = ways.map(([, doors]) => this.#sendBy(doors));
    this.#loads = ways.map(([name], n) => new Load(name, perSecond / ways.length, roomOf, this.#sends[n] as Send));
  }

  get offers(): readonly Offer[] {
    return [...this.#loads.flatMap(({ offers }) => offers), ...this.#again];
  }

  get accepted(): number {
    return this.heard.filter(({ isAccepted }) => isAccepted).length;
  }

  /** Offers no more; resolves when every event was tried until it was accepted, also those that were given up meanwhile. */
  async stop(): Promise<void> {
    await Promise.all(this.#loads.map((load) => load.stop()));
    for (const [index, { offers }] of this.#loads.entries())
      await Promise.all(offers.filter((offer) => !isAccepted(offer)).map((offer) => this.#lastTry(offer, index)));
  }

  /** After a long fault there are more of them than a socket may publish at once. */
  async #lastTry({ id, room }: Offer, index: number): Promise<void> {
    const deadline = performance.now() + LAST_TRIES_MS;
    const attempts: Offer['attempts'][number][] = [];
    do {
      if (attempts.length > 0) await sleep(500);
      const startedAt = Date.now();
      const outcome = await (this.#sends[index] as Send)({ room, id, n: 0 });
      attempts.push({ outcome, startedAt, endedAt: Date.now() });
    } while (attempts.at(-1)?.outcome.kind !== 'accepted' && performance.now() < deadline);
    this.#again.push({ id, room, attempts });
  }

  #sendBy(doors: readonly Door[]): Send {
    const tries = new Map<string, number>();
    return async ({ room, id, n }) => {
      const tried = tries.get(id) ?? 0;
      tries.set(id, tried + 1);
      const { pod, by, publish } = doors[tried % doors.length] as Door;
      const at = Date.now();
      const answer = await publish({ room, event: 'tick', data: { n }, id }).catch(() => undefined);
      const { code, position, mayHaveHappened = false } = answer ?? {};
      const accepted = position !== undefined;
      this.heard.push({ id, pod, by, room, code, isAccepted: accepted, mayHaveHappened, at, tookMs: Date.now() - at });
      return outcomeFrom(answer);
    };
  }
}

function isAccepted({ attempts }: Offer): boolean {
  return attempts.some(({ outcome }) => outcome.kind === 'accepted');
}

function outcomeFrom(answer: Ack | undefined): Outcome {
  if (answer?.position !== undefined) return { kind: 'accepted', position: answer.position };
  return { kind: answer?.code !== undefined && !answer.mayHaveHappened ? 'refused' : 'unknown' };
}

function socketDoor(pod: string, client: Client): Door {
  return { pod, by: 'socket', publish: (publication) => client.publish(publication) };
}

function httpDoor({ name, url }: Pod): Door {
  const headers = { authorization: `Bearer ${TEST_API_KEY}`, 'content-type': 'application/json' };
  const publish = async (publication: Publication): Promise<Ack> => {
    const signal = AbortSignal.timeout(HTTP_MS);
    const body = JSON.stringify(publication);
    return (await (await fetch(`${url}/v1/publish`, { method: 'POST', headers, body, signal })).json()) as Ack;
  };
  return { pod: name, by: 'http', publish };
}
