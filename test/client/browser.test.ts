import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Client, createClient, webStore } from '../../src/client/index.js';
import { publish, type Stack, startStack } from '../gateway/fixture.js';
import { bundle, type PageServer, servePage, startBrowser } from '../harness/browser.js';
import { type Haproxy, startHaproxy } from '../harness/haproxy.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { numbers, open, someone } from './fixture.js';

let stack: Stack;
let haproxy: Haproxy;
let browser: Browser;
let server: PageServer;

beforeAll(async () => {
  const script = bundle('src/client/index.ts');
  [stack, browser, server] = await Promise.all([
    startStack(2),
    startBrowser(),
    script.then(({ code }) => servePage(code)),
  ]);
  const backends = stack.pods.map(({ port, opsPort }) => ({ host: '127.0.0.1', port, opsPort }));
  haproxy = await startHaproxy({ backends });
}, 180_000);
afterAll(async () => {
  await browser?.close();
  await Promise.all([server?.stop(), haproxy?.stop(), stack?.stop()]);
});

interface Sdk {
  readonly createClient: typeof createClient;
  readonly webStore: typeof webStore;
}

/** What a page's script keeps for the test. */
interface Kept {
  client: Client;
  readonly seen: unknown[];
  readonly told: string[];
}

/** Runs in the page: an application that shows what comes. */
async function application(given: { url: string; token: string; room: string; key: string }): Promise<void> {
  const { createClient, webStore } = (globalThis as unknown as { sdk: Sdk }).sdk;
  const [seen, told]: [unknown[], string[]] = [[], []];
  const client = createClient({
    url: given.url,
    token: given.token,
    store: webStore(given.key),
    reconnectDelayMs: 100,
  });
  client.on('resync', ({ reason }) => told.push(`resync ${reason}`));
  client.on('gap', ({ reason }) => told.push(`gap ${reason}`));
  client.on('error', ({ code }) => told.push(`error ${code}`));
  client.subscribe(given.room, { onEvent: ({ data }) => seen.push(data) });
  Object.assign(globalThis, { kept: { client, seen, told } satisfies Kept });
  await client.live();
}

/** A tab that runs it. */
class Tab {
  constructor(
    readonly page: Page,
    private readonly given: { url: string; token: string; room: string; key: string },
  ) {}

  async load(): Promise<void> {
    await this.page.goto(server.url);
    await this.page.evaluate(application, this.given);
  }

  seen(): Promise<unknown[]> {
    return this.page.evaluate(() => (globalThis as unknown as { kept: Kept }).kept.seen);
  }

  told(): Promise<string[]> {
    return this.page.evaluate(() => (globalThis as unknown as { kept: Kept }).kept.told);
  }

  publish(data: unknown): Promise<unknown> {
    return this.page.evaluate(
      ([room, value]) => (globalThis as unknown as { kept: Kept }).kept.client.publish(room as string, 'e', value),
      [this.given.room, data],
    );
  }
}

async function openTab(room: string, key = room): Promise<Tab> {
  const page = await browser.newPage();
  const tab = new Tab(page, { url: haproxy.url, token: await token({ sub: someone(), caps: ALL_CAPS }), room, key });
  await tab.load();
  return tab;
}

test('in Chromium: a second tab that writes to the same key is told so, and goes on without', async () => {
  const room = someone('room');
  const context = await browser.newContext();
  const given = { url: haproxy.url, token: await token({ sub: someone(), caps: ALL_CAPS }), room, key: room };
  const tabs = [new Tab(await context.newPage(), given), new Tab(await context.newPage(), given)] as const;
  await tabs[0].load();
  await tabs[1].load();
  await publish(stack.pod(1), room, [1]);
  for (const tab of tabs) await eventually(async () => expect(await tab.seen()).toEqual([1]));
  const told = async () => (await Promise.all(tabs.map((tab) => tab.told()))).flat();
  await eventually(async () => expect(await told()).toContain('error conflict'));
  await publish(stack.pod(1), room, [2]);
  for (const tab of tabs) await eventually(async () => expect(await tab.seen()).toEqual([1, 2]));
  expect((await told()).filter((line) => line === 'error conflict')).toHaveLength(1);
  await context.close();
});

test('in Chromium: what is published is seen once and in order, over reloads of the page and the kill of a pod', async () => {
  const room = someone('room');
  const tab = await openTab(room);
  await tab.publish(1);
  await publish(stack.pod(1), room, [2, 3]);
  await eventually(async () => expect(await tab.seen()).toEqual([1, 2, 3]));

  // published while the page is away
  await tab.page.goto('about:blank');
  await publish(stack.pod(1), room, [4, 5]);
  await tab.load();
  await publish(stack.pod(1), room, [6]);
  await eventually(async () => expect(await tab.seen()).toEqual([4, 5, 6]));
  expect(await tab.told()).toEqual([]);

  const connections = await Promise.all(stack.pods.map((pod) => pod.metrics()));
  const its = connections.findIndex((metrics) => metrics.get('holdfast_connections') === 1);
  const other = stack.pod(1 - its);
  await stack.pod(its).sigkill();
  await publish(other, room, [7]);
  await eventually(async () => expect(await tab.seen()).toEqual(numbers(4, 7)), { withinMs: 20_000 });

  // a reload under way while events come
  await tab.page.reload();
  await publish(other, room, [8]);
  await tab.load();
  await tab.publish(9);
  await eventually(async () => expect(await tab.seen()).toEqual([8, 9]));
  expect(await tab.told()).toEqual([]);
  await tab.page.close();
}, 90_000);

test('in Chromium: a page calls a method, and runs one, over the end of its connection', async () => {
  const given = await token({ sub: someone(), caps: ALL_CAPS });
  const tab = new Tab(await browser.newPage(), { url: haproxy.url, token: given, room: 'room', key: someone('key') });
  await tab.load();
  const { client } = open(haproxy.url, { token: given });
  await using _ = client;
  await client.register('half', (n: number) => {
    if (n % 2 === 1) throw new Error('odd');
    return n / 2;
  }).ready;
  const called = tab.page.evaluate(async () => {
    const { client } = (globalThis as unknown as { kept: Kept }).kept;
    const failed = await client.call('half', 7).catch((error) => [error.code, error.message, error.mayHaveRun]);
    return [await client.call('half', 8), failed];
  });
  expect(await called).toEqual([4, ['handler_error', 'odd', true]]);

  await tab.page.evaluate(async () => {
    const { client, seen } = (globalThis as unknown as { kept: Kept }).kept;
    const registration = client.register('reversed', async (bytes: ArrayBuffer) => {
      seen.push('begun');
      // as long as it takes to lose the connection and to be back
      const end = await new Promise((resolve) =>
        client.on('status', ({ state }) => state === 'live' && resolve(state)),
      );
      return { end, bytes: new Uint8Array(bytes).reverse().buffer };
    });
    await registration.ready;
  });
  const answer = client.call<{ end: string; bytes: Buffer }>('reversed', Buffer.from([1, 2, 3]));
  await eventually(async () => expect(await tab.seen()).toEqual(['begun']));
  await tab.page.evaluate(() => (globalThis as unknown as { kept: Kept }).kept.client.socket.io.engine.close());
  const { end, bytes } = await answer;
  expect([end, ...bytes]).toEqual(['live', 3, 2, 1]);
  expect(await tab.seen()).toEqual(['begun']);
  await tab.page.close();
}, 60_000);
