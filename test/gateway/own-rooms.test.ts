import { expect, it } from 'vitest';
import { connect } from '../harness/client.js';
import { startPod } from '../harness/pod.js';
import { eventually } from '../harness/poll.js';
import { startRedis } from '../harness/redis.js';
import { ALL_CAPS, token } from '../harness/token.js';

it("one of the token's own rooms that was left stays left over a recovery", async () => {
  await using redis = await startRedis();
  await using pod = await startPod({ redisUrl: redis.url, name: 'a' });
  const jwt = await token({ sub: 'me', caps: ALL_CAPS });
  await using client = await connect(pod.url, { token: jwt });
  await using publisher = await connect(pod.url, { token: await token({ sub: 'other', caps: ALL_CAPS }) });
  const publish = async (room: string, id: string): Promise<void> => {
    expect(await publisher.publish({ room, event: 'tick', id })).toMatchObject({ ok: true });
  };
  expect(await client.unsubscribe('user:me')).toMatchObject({ ok: true });
  await publish('user:me', 'while connected');
  client.cut();
  await eventually(() => client.connects.length === 2, { what: 'the client to be back' });
  expect(client.connects.at(-1)).toMatchObject({ recovered: true });
  await publish('user:me', 'after the recovery');
  // the tenant's room is the fence: what comes through it came after the others
  await publish('tenant:default', 'fence');
  await eventually(() => client.received.length > 0, { what: 'the fence' });
  expect(client.received.map(({ meta }) => meta.id)).toEqual(['fence']);
});
