import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Registration, RelayError } from '../../src/client/index.js';
import { publish, type Stack, startStack } from '../gateway/fixture.js';
import { eventually } from '../harness/poll.js';
import { ALL_CAPS, token } from '../harness/token.js';
import { collect, live, open, someone } from './fixture.js';

let stack: Stack;

beforeAll(async () => {
  stack = await startStack(1);
});
afterAll(() => stack?.stop());

/** What the relay was asked, and how often it was connected to. */
const watch = (client: ReturnType<typeof open>['client']) => {
  const asked: string[] = [];
  client.socket.onAnyOutgoing((event: string) => asked.push(event));
  let connects = 0;
  client.socket.on('connect', () => connects++);
  return { asked, connects: () => connects };
};

test.concurrent('a token is replaced before it ends, on the same connection', async () => {
  const [sub, startedAt] = [someone(), Date.now()];
  let given = 0;
  const { client, errors, states } = open(stack.pod(0).url, {
    token: () => token({ sub, caps: ALL_CAPS, ttlSeconds: given++ === 0 ? 5 : 3600 }),
  });
  await using _ = client;
  const { asked, connects } = watch(client);
  await client.live();
  await eventually(() => asked.includes('auth-refresh'));
  // longer than the first token
  await eventually(() => Date.now() > startedAt + 5200, { withinMs: 10_000 });
  expect({ given, connects: connects(), states, errors }).toEqual({
    given: 2,
    connects: 1,
    states: ['live'],
    errors: [],
  });
});

test.concurrent('a token that allows less ends what may no longer be registered, and says so', async () => {
  const sub = someone();
  let given = 0;
  const { client, errors } = open(stack.pod(0).url, {
    token: () =>
      given++ === 0
        ? token({ sub, caps: ALL_CAPS, ttlSeconds: 5 })
        : token({ sub, caps: { ...ALL_CAPS, register: [`${sub}/kept`] } }),
  });
  await using _ = client;
  const [kept, taken] = ['kept', 'taken'].map((method) => client.register(method, () => method)) as [
    Registration,
    Registration,
  ];
  await Promise.all([kept.ready, taken.ready]);
  await eventually(() => taken.state === 'ended', { withinMs: 10_000 });
  await expect(taken.ready).rejects.toMatchObject({ code: 'permission_denied' });
  expect(errors).toMatchObject([{ code: 'permission_denied' }]);
  expect(kept.state).toBe('registered');
  expect(await client.presence()).toMatchObject({ methods: ['kept'] });
  const again = client.register('taken', () => 1);
  await expect(again.ready).rejects.toMatchObject({ code: 'permission_denied' });
});

test.concurrent('a token that was not replaced in time is replaced by a reconnect that misses nothing', async () => {
  const [sub, room] = [someone(), someone('room')];
  let given = 0;
  const { client, resyncs, states } = open(stack.pod(0).url, {
    token: async () => {
      given++;
      if (given === 1) return token({ sub, caps: ALL_CAPS, ttlSeconds: 2 });
      if (given < 4) throw new Error('the issuer is away');
      return token({ sub, caps: ALL_CAPS });
    },
  });
  await using _ = client;
  const got = collect(client, room);
  await client.live();
  await eventually(() => states.includes('connecting'));
  await publish(stack.pod(0), room, [1]);
  await live(client);
  await eventually(() => got.events.length === 1);
  expect(given).toBeGreaterThanOrEqual(4);
  expect(resyncs).toEqual(['new']);
});

test.concurrent('a refused token is never sent again: a function is asked for another', async () => {
  const sub = someone();
  const given: string[] = [];
  const { client, states } = open(stack.pod(0).url, {
    token: async () => {
      const next = given.length === 0 ? 'no.token.at-all' : await token({ sub });
      given.push(next);
      return next;
    },
  });
  await using _ = client;
  await client.live();
  expect(given).toHaveLength(2);
  expect(states).toEqual(['connecting', 'live']);
});

test.concurrent.each([
  ['a text that has expired', (): Promise<string> => token({ sub: 'u', ttlSeconds: -60 }), 'token_expired'],
  ['a text that is none', (): string => 'no.token.at-all', 'unauthorized'],
] as const)('%s closes the client, as there is no other', async (_, make, code) => {
  const { client, states } = open(stack.pod(0).url, { token: await make() });
  const loop = client.subscribe('room').next();
  await expect(client.live()).rejects.toMatchObject({ code });
  expect(client.status).toMatchObject({ state: 'closed', error: { code } });
  await expect(loop).rejects.toMatchObject({ code });
  await expect(client.publish('room', 'e', 1)).rejects.toMatchObject({ code });
  expect(states).toEqual(['closed']);
  await client.close();
});

test.concurrent('a function that gives again what had expired is asked until it gives another', async () => {
  const sub = someone();
  const expired = await token({ sub, ttlSeconds: -60 });
  let given = 0;
  const { client, errors, states } = open(stack.pod(0).url, {
    token: () => (++given < 4 ? expired : token({ sub })),
    reconnectDelayMs: 10,
  });
  await using _ = client;
  await client.live();
  expect({ given, states }).toEqual({ given: 4, states: ['connecting', 'connecting', 'connecting', 'live'] });
  expect(errors).toMatchObject(
    [1, 2].map(() => ({ code: 'unavailable', cause: { cause: { code: 'token_expired' } } })),
  );
});

test.concurrent('a token that is refused when it should replace another is not sent again, and the one that holds is used up', async () => {
  const sub = someone();
  let given = 0;
  const { client, errors, states } = open(stack.pod(0).url, {
    token: () => {
      given++;
      if (given === 1) return token({ sub, ttlSeconds: 12 });
      return given < 4 ? 'no.token.at-all' : token({ sub });
    },
  });
  await using _ = client;
  const { asked } = watch(client);
  await client.live();
  await eventually(() => states.length === 3, { withinMs: 25_000 });
  expect({ given, asked, states }).toEqual({
    given: 4,
    asked: ['auth-refresh'],
    states: ['live', 'connecting', 'live'],
  });
  expect(errors).toMatchObject([{ code: 'unauthorized' }, { code: 'unauthorized' }]);
});

test.concurrent('who signs out closes the client before the token ends', async () => {
  const sub = someone();
  let given = 0;
  const { client, errors, states } = open(stack.pod(0).url, {
    token: () => {
      if (given++ > 0) throw new RelayError('unauthorized', 'signed out');
      return token({ sub, ttlSeconds: 8 });
    },
  });
  await eventually(() => client.status.state === 'closed', { withinMs: 20_000 });
  expect(client.status).toMatchObject({ error: { code: 'unauthorized', message: 'signed out' } });
  expect({ errors, states }).toEqual({ errors: [], states: ['live', 'closed'] });
});

test.concurrent('a function that gives the refused token again closes the client, and so does one that says unauthorized', async () => {
  const same = open(stack.pod(0).url, { token: () => 'no.token.at-all' }).client;
  await expect(same.live()).rejects.toMatchObject({ code: 'unauthorized' });
  const signOut = async (): Promise<string> => {
    throw new RelayError('unauthorized', 'signed out');
  };
  const signedOut = open(stack.pod(0).url, { token: signOut }).client;
  await expect(signedOut.live()).rejects.toMatchObject({ code: 'unauthorized', message: 'signed out' });
});

test.concurrent('a request that another token cannot mend closes the client', async () => {
  const { client } = open(stack.pod(0).url, { auth: { clientType: 'session-scoped' } });
  await expect(client.live()).rejects.toMatchObject({
    code: 'bad_request',
    message: 'Session ID required for session-scoped clients',
  });
});

test.concurrent('a room that is refused while the client waits for its consumer makes nobody wait any more', async () => {
  const [sub, kept, lost] = [someone(), someone('kept'), someone('lost')];
  let given = 0;
  const { client, states } = open(stack.pod(0).url, {
    token: () =>
      given++ === 0
        ? token({ sub, caps: { subscribe: [kept, lost] }, ttlSeconds: 8 })
        : token({ sub, caps: { subscribe: [kept] } }),
    bufferSize: 2,
  });
  await using _ = client;
  const [stays, goes] = [collect(client, kept), client.subscribe(lost)];
  await client.live();
  await publish(stack.pod(0), lost, [1, 2, 3]);
  await eventually(() => client.status.state === 'lagging');
  await eventually(() => states.at(-1) === 'live', { withinMs: 20_000 });
  await expect(goes.ready).resolves.toBeUndefined();
  await expect(goes.next()).rejects.toMatchObject({ code: 'permission_denied' });
  await publish(stack.pod(0), kept, [4]);
  await eventually(() => stays.events.length === 1);
  expect(stays.data()).toEqual([4]);
});

test.concurrent('a room that the next token does not allow is told, not left in silence', async () => {
  const [sub, kept, lost] = [someone(), someone('kept'), someone('lost')];
  let given = 0;
  const { client, errors } = open(stack.pod(0).url, {
    token: () =>
      given++ === 0
        ? token({ sub, caps: { subscribe: [kept, lost] }, ttlSeconds: 4 })
        : token({ sub, caps: { subscribe: [kept] } }),
  });
  await using _ = client;
  const [stays, goes] = [collect(client, kept), client.subscribe(lost)];
  await client.live();
  await expect(goes.next()).rejects.toMatchObject({ code: 'permission_denied' });
  expect(errors).toMatchObject([{ code: 'permission_denied' }]);
  await publish(stack.pod(0), kept, [1]);
  await eventually(() => stays.events.length === 1);
  expect(client.status.state).toBe('live');
});
