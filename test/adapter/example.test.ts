import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Child } from '../harness/child.js';
import { freePort } from '../harness/free-port.js';
import { eventually } from '../harness/poll.js';
import { type RedisProcess, startRedis } from '../harness/redis.js';
import { TestClient } from './rig.js';

const pathOf = (file: string): string => fileURLToPath(new URL(`../../examples/chat/${file}`, import.meta.url));

test('the chat is migrated by one changed import', () => {
  const [before = [], after = []] = ['server.before.js', 'server.js'].map((file) =>
    readFileSync(pathOf(file), 'utf8').split('\n'),
  );
  expect(after).toHaveLength(before.length);
  const changed = before.flatMap((line, i) => (line === after[i] ? [] : [line, after[i]]));
  expect(changed).toEqual([
    "import { createAdapter } from '@socket.io/redis-streams-adapter';",
    "import { createAdapter } from 'holdfast/adapter';",
  ]);
  const shown = readFileSync(pathOf('README.md'), 'utf8');
  expect(shown).toContain(`-${changed[0]}\n+${changed[1]}\n`);
});

describe.each(['server.before.js', 'server.js'])('the chat on %s', (file) => {
  let redis: RedisProcess;
  const servers: Child[] = [];
  const clients: TestClient[] = [];
  const ports: number[] = [];
  const start = (index: number): void => {
    const env = { ...process.env, PORT: String(ports[index]), REDIS_URL: redis.url };
    servers[index] = new Child(process.execPath, { args: [pathOf(file)], env });
  };
  beforeAll(async () => {
    redis = await startRedis({ aof: 'off' });
    ports.push(await freePort(), await freePort());
    for (const index of ports.keys()) start(index);
    for (const server of servers)
      await eventually(() => server.lines.some((line) => line.startsWith('http:')), {
        withinMs: 15_000,
        what: 'a server',
      });
  });
  afterAll(async () => {
    for (const client of clients) client.stop();
    for (const server of servers) await server.kill();
    await redis?.stop();
  });

  const urlOf = (index: number): string => `http://127.0.0.1:${ports[index]}`;
  const enter = async (index: number, room: string, name: string): Promise<[TestClient, string[]]> => {
    const client = new TestClient(urlOf(index));
    clients.push(client);
    await client.connected();
    return [client, (await client.socket.timeout(10_000).emitWithAck('enter', { room, name })) as string[]];
  };
  const said = (client: TestClient): unknown[] =>
    client.values('said').map((value) => (value as { text: string }).text);

  test('serves its page', async () => {
    expect(await (await fetch(urlOf(0))).text()).toContain('<title>Chat</title>');
  });

  test('people in one room on two servers see each other, and nobody else', async () => {
    const [ann] = await enter(0, 'kitchen', 'Ann');
    const [bob, names] = await enter(1, 'kitchen', 'Bob');
    const [eve] = await enter(1, 'hall', 'Eve');
    expect(names).toEqual(['Ann', 'Bob']);
    await eventually(() => expect(ann.values('entered')).toEqual([{ name: 'Bob' }]), { what: 'Bob' });
    ann.socket.emit('say', 'hello');
    await eventually(() => said(bob).length === 1, { what: 'a word' });
    bob.socket.emit('say', 'hello Ann');
    for (const client of [ann, bob]) await eventually(() => expect(said(client)).toEqual(['hello', 'hello Ann']));
    expect(said(eve)).toEqual([]);
    bob.stop();
    await eventually(() => expect(ann.values('left')).toEqual([{ name: 'Bob' }]), { what: 'Bob to leave' });
  });

  test('whoever was away comes back on the other server, and gets once and in order what was said', async () => {
    const [kim] = await enter(0, 'garden', 'Kim');
    const [lee] = await enter(1, 'garden', 'Lee');
    kim.socket.emit('say', 'one');
    await eventually(() => said(lee).length === 1, { what: 'a word' });
    lee.moveTo(urlOf(0));
    lee.socket.io.reconnectionDelay(300);
    lee.cut();
    for (const text of ['two', 'three']) kim.socket.emit('say', text);
    await lee.connected(2);
    expect(lee.connects).toEqual([false, true]);
    lee.socket.emit('say', 'four');
    for (const client of [kim, lee])
      await eventually(() => expect(said(client)).toEqual(['one', 'two', 'three', 'four']), { what: 'all words' });
  });

  const does = file === 'server.js';
  test(`a client that was cut before it had received anything ${does ? 'is' : 'is not'} recovered`, async () => {
    const [client] = await enter(0, 'cellar', 'Max');
    client.cut();
    await client.connected(2);
    expect(client.connects).toEqual([false, does]);
  });

  test(`a server that was killed ${does ? 'gives its client back' : 'loses for its client'} what was said meanwhile`, async () => {
    const [pat] = await enter(0, 'attic', 'Pat');
    const [sam] = await enter(1, 'attic', 'Sam');
    pat.socket.emit('say', 'one');
    await eventually(() => said(sam).length === 1, { what: 'a word' });
    await servers[1]?.kill();
    pat.socket.emit('say', 'two');
    await eventually(() => said(pat).length === 2, { what: 'a word' });
    start(1);
    await sam.connected(2);
    expect(sam.connects).toEqual([false, does]);
    // the page enters again unless it was recovered
    if (!does) await sam.socket.timeout(10_000).emitWithAck('enter', { room: 'attic', name: 'Sam' });
    pat.socket.emit('say', 'three');
    await eventually(() => said(sam).at(-1) === 'three', { what: 'the last word' });
    expect(said(sam)).toEqual(does ? ['one', 'two', 'three'] : ['one', 'three']);
  });
});
