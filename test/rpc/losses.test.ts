import { Redis } from 'ioredis';
import { describe, expect, it } from 'vitest';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { startTcpProxy } from '../harness/tcp-proxy.js';
import { startMember, TestDaemon } from './rig.js';

const slowly = (ms: number) => () => new Promise((resolve) => setTimeout(resolve, ms, 'done'));

describe.concurrent('a call', () => {
  it.each(['its request', 'its answer'])('is answered though the inbox lost %s', async (what) => {
    await using redis = await startRedis({ aof: 'off' });
    await using a = await startMember(redis.url);
    await using b = await startMember(redis.url);
    const admin = new Redis(redis.url);
    const daemon = await b.serve(new TestDaemon('u', slowly(300)), 'm');
    const inbox = (member: typeof a): string => `hf:inbox:{${member.processId}}`;
    // nobody can be told while there is none
    if (what === 'its request') await admin.del(inbox(b));
    const calling = a.call('u', 'm');
    await eventually(async () => (await admin.exists('hf:rpc:{default/u}:m:wait', 'hf:rpc:{default/u}:m:active')) > 0);
    if (what === 'its answer') await admin.del(inbox(a));
    // as a process does when it notices
    await eventually(async () => (await admin.zcard('hf:rpc:{default/u}:m:completed')) === 1 || what === 'its request');
    a.pods.inbox.restore();
    b.pods.inbox.restore();
    expect(await calling).toEqual({ ok: true, result: 'done' });
    expect(daemon.requests).toHaveLength(1);
    admin.disconnect();
  });

  it.each(['instance', 'raw'])('survives FLUSHALL once, with a daemon that is %s', async (kind) => {
    await using redis = await startRedis({ aof: 'off' });
    await using a = await startMember(redis.url);
    await using b = await startMember(redis.url);
    const admin = new Redis(redis.url);
    const daemon = await b.serve(new TestDaemon('u', slowly(1500)), 'm', kind === 'raw' ? false : 'it');
    const calls = Array.from({ length: 20 }, (_, n) => a.call('u', 'm', n, { timeoutMs: 10_000 }));
    await eventually(() => daemon.requests.length === 20);
    await admin.flushall();
    for (const outcome of await Promise.all(calls)) expect(outcome).toEqual({ ok: true, result: 'done' });
    expect(daemon.requests).toHaveLength(20);
    await eventually(async () => expect(await a.call('u', 'm', 'again')).toMatchObject({ ok: true }));
    admin.disconnect();
  });

  it('is unavailable within 2 s while Redis stands still, and none of those runs afterwards', async () => {
    await using redis = await startRedis({ aof: 'off' });
    await using a = await startMember(redis.url);
    await using b = await startMember(redis.url);
    const daemon = await b.serve(new TestDaemon('u'), 'm');
    expect(await a.call('u', 'm', 'before')).toMatchObject({ ok: true });
    redis.pause();
    const startedAt = performance.now();
    const calls = Array.from({ length: 50 }, (_, n) => a.call('u', 'm', n, { timeoutMs: 60_000 }));
    for (const outcome of await Promise.all(calls)) expect(outcome).toMatchObject({ code: 'unavailable' });
    // the rest is for a busy machine
    expect(performance.now() - startedAt).toBeLessThan(2000 + 400);
    redis.resume();
    await eventually(async () => expect(await a.call('u', 'm', 'after')).toMatchObject({ ok: true }), {
      withinMs: 10_000,
    });
    expect(daemon.requests.map(({ params }) => params)).toEqual(['before', 'after']);
    expect(a.rpc.pendingCount).toBe(0);
  });

  it('is made once though the reply to it is lost', async () => {
    await using redis = await startRedis({ aof: 'off' });
    await using proxy = await startTcpProxy(redis.port);
    await using a = await startMember(`redis://127.0.0.1:${proxy.port}`);
    await using b = await startMember(redis.url);
    const daemon = await b.serve(new TestDaemon('u', slowly(200)), 'm');
    proxy.dropReplies(true);
    const calls = Array.from({ length: 20 }, (_, n) => a.call('u', 'm', n));
    await eventually(() => daemon.requests.length === 20);
    proxy.dropReplies(false);
    proxy.rst();
    for (const outcome of await Promise.all(calls)) expect(outcome).toMatchObject({ ok: true });
    expect(daemon.requests).toHaveLength(20);
  });

  it('whose daemon answers while its process has no Redis is told when it has one again', async () => {
    await using redis = await startRedis({ aof: 'off' });
    await using proxy = await startTcpProxy(redis.port);
    await using a = await startMember(redis.url);
    await using b = await startMember(`redis://127.0.0.1:${proxy.port}`);
    const daemon = await b.serve(new TestDaemon('u', slowly(300)), 'm');
    const calls = Array.from({ length: 20 }, (_, n) => a.call('u', 'm', n, { timeoutMs: 15_000 }));
    await eventually(() => daemon.requests.length === 20);
    await proxy.refuse(true);
    proxy.rst();
    await new Promise((resolve) => setTimeout(resolve, 1000));
    await proxy.refuse(false);
    for (const outcome of await Promise.all(calls)) expect(outcome).toMatchObject({ ok: true });
    expect(daemon.requests).toHaveLength(20);
  });
});

it('a call whose caller was told, and whose daemon never got it, does not run when another one comes', async () => {
  await using redis = await startRedis({ aof: 'off' });
  await using proxy = await startTcpProxy(redis.port);
  await using b = await startMember(redis.url);
  const lost = await startMember(`redis://127.0.0.1:${proxy.port}`);
  const daemon = await lost.serve(new TestDaemon('u'), 'm');
  // Redis takes the call, and neither the reply nor the message to the process's own inbox arrives
  proxy.dropReplies(true);
  expect(await lost.call('u', 'm', 'x')).toMatchObject({ code: 'unavailable', mayHaveRun: true });
  const next = await b.serve(new TestDaemon('u'), 'm');
  expect(await b.call('u', 'm', 'y')).toEqual({ ok: true, result: 'y' });
  expect([daemon.requests, next.requests.map(({ params }) => params)]).toEqual([[], ['y']]);
  proxy.dropReplies(false);
  proxy.rst();
  await lost[Symbol.asyncDispose]();
});
