import { Redis } from 'ioredis';
import { type Client, connect } from '../harness/client.js';
import { type Pod, type PodOptions, startPod, TEST_API_KEY } from '../harness/pod.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';

/** A Redis and some pods on it. */
export class Stack implements AsyncDisposable {
  constructor(
    readonly redis: RedisProcess,
    readonly pods: readonly Pod[],
    readonly client: Redis,
  ) {}

  pod(index: number): Pod {
    const pod = this.pods[index];
    if (!pod) throw new Error(`no pod ${index}`);
    return pod;
  }

  async stop(): Promise<void> {
    this.client.disconnect();
    await Promise.all(this.pods.map((pod) => pod.stop()));
    await this.redis.stop();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

export async function startStack(count: number, options: Partial<PodOptions> = {}): Promise<Stack> {
  const redis = await startRedis({ aof: 'off' });
  const pods = await Promise.all(
    Array.from({ length: count }, (_, index) => startPod({ redisUrl: redis.url, name: `pod-${index}`, ...options })),
  );
  const client = new Redis(redis.url, { maxRetriesPerRequest: null });
  client.on('error', () => {});
  return new Stack(redis, pods, client);
}

export interface Answer {
  readonly status: number;
  // biome-ignore lint/suspicious/noExplicitAny: answers are what the test says they are
  readonly body: any;
}

/** Asks a pod's HTTP API. */
export async function ask(
  pod: Pod,
  method: string,
  path: string,
  { body, key = TEST_API_KEY, headers = {} }: { body?: unknown; key?: string; headers?: Record<string, string> } = {},
): Promise<Answer> {
  const response = await fetch(`${pod.url}${path}`, {
    method,
    headers: {
      ...(key !== '' && { authorization: `Bearer ${key}` }),
      ...(body !== undefined && { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    signal: AbortSignal.timeout(15_000),
  });
  const text = await response.text();
  return { status: response.status, body: text.startsWith('{') || text.startsWith('[') ? JSON.parse(text) : text };
}

/** Publishes over HTTP, one by one, so that their order is certain. */
export async function publish(pod: Pod, room: string, data: readonly unknown[], tenant?: string): Promise<string[]> {
  const positions: string[] = [];
  for (let from = 0; from < data.length; from += 100) {
    const body = data.slice(from, from + 100).map((item) => ({ room, event: 'e', data: item, tenant }));
    const answer = await ask(pod, 'POST', '/v1/publish', { body });
    for (const result of answer.body.results) {
      if (!result.ok) throw new Error(JSON.stringify(result));
      positions.push(result.position);
    }
  }
  return positions;
}

let users = 0;

/** A user that no other test has. */
export function someone(name = 'user'): string {
  return `${name}-${++users}`;
}

/** A connected client that may do everything in its tenant. */
export async function join(
  pod: Pod,
  { sub = someone(), tenant, rooms = [] }: { sub?: string; tenant?: string; rooms?: readonly string[] } = {},
): Promise<Client> {
  const client = await connect(pod.url, { token: await token({ sub, tenant, caps: ALL_CAPS }) });
  for (const room of rooms) {
    const ack = await client.subscribe(room);
    if (!ack.ok) throw new Error(`subscribe: ${JSON.stringify(ack)}`);
  }
  return client;
}

/** What a client got, by its data. */
export function dataOf(client: Client): unknown[] {
  return client.received.map(({ data }) => data);
}
