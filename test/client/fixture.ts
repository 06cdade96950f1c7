import {
  type Client,
  type ClientOptions,
  createClient,
  type RelayEvent,
  type Subscription,
} from '../../src/client/index.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, type TokenOptions, token } from '../harness/token.js';

let users = 0;

/** A user or a room that no other test has. */
export function someone(name = 'user'): string {
  return `${name}-${++users}`;
}

/** A token function for somebody who may do everything in his tenant. */
export function tokens(options: Partial<TokenOptions> = {}): () => Promise<string> {
  const sub = options.sub ?? someone();
  return () => token({ sub, caps: ALL_CAPS, ...options });
}

/** Of the SDK, with what it told. */
export interface Told {
  readonly client: Client;
  readonly states: string[];
  readonly resyncs: string[];
  readonly gaps: { readonly reason: string; readonly from: string; readonly to: string }[];
  readonly errors: { readonly code: string; readonly message: string; readonly cause?: unknown }[];
}

export function open(url: string, options: Partial<ClientOptions> = {}): Told {
  const client = createClient({ url, token: tokens(), saveEveryMs: 20, reconnectDelayMs: 100, ...options });
  const told: Told = { client, states: [], resyncs: [], gaps: [], errors: [] };
  client.on('status', ({ state }) => told.states.push(state));
  client.on('resync', ({ reason }) => told.resyncs.push(reason));
  client.on('gap', (gap) => told.gaps.push(gap));
  client.on('error', (error) => told.errors.push(error));
  return told;
}

/** A subscription whose events are kept. */
export function collect(client: Client, room: string, from?: string) {
  const events: RelayEvent[] = [];
  // comings and goings are told in the room of their user, too
  const onEvent = (event: RelayEvent) => event.event === 'presence' || events.push(event);
  const subscription: Subscription = client.subscribe(room, { from, onEvent });
  return { subscription, events, data: (): unknown[] => events.map(({ data }) => data) };
}

export async function live(client: Client): Promise<void> {
  await eventually(() => client.status.state === 'live', { withinMs: 15_000, what: 'a client to be live' });
}

export function numbers(from: number, to: number): number[] {
  return Array.from({ length: to - from + 1 }, (_, index) => from + index);
}
