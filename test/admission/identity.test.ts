import { createHmac, createSign, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { exportJWK, SignJWT } from 'jose';
import { afterEach, describe, expect, test } from 'vitest';
import { hasDuplicateClaims, TokenVerifier } from '../../src/admission/identity.js';
import { KeySet } from '../../src/admission/key-set.js';
import { FatalError, toWireError } from '../../src/core/errors.js';

const SECRET = 'a-secret-of-at-least-32-characters-000000';
const base64 = (text: string | object): string =>
  Buffer.from(typeof text === 'string' ? text : JSON.stringify(text)).toString('base64url');
const now = (): number => Math.floor(Date.now() / 1000);

/** Signs whatever text is given, as `HS256`, `HS512` … with whatever key. */
function forge(header: object, payload: string | object, key = SECRET, hash = 'sha256'): string {
  const text = `${base64(header)}.${base64(payload)}`;
  return `${text}.${createHmac(hash, key).update(text).digest('base64url')}`;
}

const HS256 = { alg: 'HS256' };
const good = (): object => ({ sub: 'ann', exp: now() + 60 });
const verifier = new TokenVerifier({ secret: SECRET, algorithm: 'RS256' });
const codeOf = (token: unknown, by = verifier): Promise<string> =>
  by.identify(token).then(
    () => 'ok',
    (error) => error.code,
  );

describe('a token that says how it wants to be verified', () => {
  test('is refused, unless that is the pinned way', async () => {
    expect(await codeOf(forge(HS256, good()))).toBe('ok');
    const [head, body, signature] = forge(HS256, good()).split('.') as [string, string, string];
    for (const alg of ['none', 'None', 'NONE', '', null, undefined, 'hs256']) {
      expect(await codeOf(`${base64({ alg })}.${body}.`), String(alg)).toBe('unauthorized');
      expect(await codeOf(`${base64({ alg })}.${body}.${signature}`), String(alg)).toBe('unauthorized');
      expect(await codeOf(forge({ alg }, good())), String(alg)).toBe('unauthorized');
    }
    expect(await codeOf(forge({ alg: 'HS512' }, good(), SECRET, 'sha512'))).toBe('unauthorized');
    expect(await codeOf(`${head}.${body}.`)).toBe('unauthorized');
    expect(await codeOf(`${head}.${body}`)).toBe('unauthorized');
    expect(await codeOf(forge({ ...HS256, kid: '../../../../dev/null' }, good(), ''))).toBe('unauthorized');
    expect(await codeOf(forge({ ...HS256, crit: ['exp'] }, good()))).toBe('unauthorized');
  });

  test.each(['RS256', 'ES256'])('cannot have the public key of %s taken for a secret', async (algorithm) => {
    const { publicKey, privateKey } =
      algorithm === 'RS256'
        ? generateKeyPairSync('rsa', { modulusLength: 2048 })
        : generateKeyPairSync('ec', { namedCurve: 'P-256' });
    const pem = publicKey.export({ type: 'spki', format: 'pem' }).toString();
    const pinned = new TokenVerifier({ publicKey: pem, algorithm });
    for (const key of [pem, pem.trim(), publicKey.export({ type: 'spki', format: 'der' }).toString('latin1')])
      expect(await codeOf(forge(HS256, good(), key), pinned)).toBe('unauthorized');
    const signed = await new SignJWT({ sub: 'ann' })
      .setProtectedHeader({ alg: algorithm })
      .setExpirationTime('1m')
      .sign(privateKey);
    expect(await codeOf(signed, pinned)).toBe('ok');
    expect(await codeOf(`${signed.slice(0, -8)}AAAAAAAA`, pinned)).toBe('unauthorized');
  });
});

describe('a public key', () => {
  const ec = (namedCurve: string) => generateKeyPairSync('ec', { namedCurve }).publicKey;
  const rsa = (modulusLength: number) => generateKeyPairSync('rsa', { modulusLength }).publicKey;
  const make = (key: KeyObject, algorithm: string) =>
    new TokenVerifier({ publicKey: key.export({ type: 'spki', format: 'pem' }).toString(), algorithm });

  test.each([
    ['RS256', ec('P-256'), 'rsa of at least 2048 bits, and this key is ec prime256v1'],
    ['PS512', generateKeyPairSync('ed25519').publicKey, 'rsa of at least 2048 bits, and this key is ed25519'],
    ['RS256', rsa(1024), 'rsa of at least 2048 bits, and this key is rsa of 1024 bits'],
    ['ES256', ec('P-384'), 'ec prime256v1, and this key is ec secp384r1'],
    ['EdDSA', generateKeyPairSync('ed448').publicKey, 'ed25519, and this key is ed448'],
  ])('that does not fit %s ends the start in one line', (algorithm, key, rest) => {
    expect(() => make(key, algorithm)).toThrow(
      new FatalError(`HOLDFAST_JWT_PUBLIC_KEY: HOLDFAST_JWT_ALGORITHM=${algorithm} wants ${rest}`),
    );
  });

  test.each([
    ['RS256', generateKeyPairSync('rsa', { modulusLength: 2048 })],
    ['PS384', generateKeyPairSync('rsa', { modulusLength: 2048 })],
    ['ES384', generateKeyPairSync('ec', { namedCurve: 'P-384' })],
    ['ES512', generateKeyPairSync('ec', { namedCurve: 'P-521' })],
    ['EdDSA', generateKeyPairSync('ed25519')],
  ])('that fits %s verifies', async (alg, { publicKey, privateKey }) => {
    const token = await new SignJWT({ sub: 'ann' })
      .setProtectedHeader({ alg })
      .setExpirationTime('1m')
      .sign(privateKey);
    expect(await codeOf(token, make(publicKey, alg))).toBe('ok');
  });
});

describe('a token that is no token', () => {
  test.each([
    ['nothing', undefined, 'Missing authentication token'],
    ['null', null, 'Missing authentication token'],
    ['an empty text', '', 'Missing authentication token'],
    ['a number', 7, 'Invalid authentication token'],
    ['an object', {}, 'Invalid authentication token'],
    ['a long text', 'x'.repeat(20_000), 'Invalid authentication token'],
    ['dots', '..', 'Invalid authentication token'],
    ['three words', 'a.b.c', 'Invalid authentication token'],
    ['five parts', 'a.b.c.d.e', 'Invalid authentication token'],
  ])('%s is refused', async (_name, token, text) => {
    await expect(verifier.identify(token)).rejects.toMatchObject({ code: 'unauthorized', message: text });
  });

  test.each([
    ['no sub', { exp: now() + 60 }],
    ['no exp', { sub: 'ann' }],
    ['a number as sub', { sub: 5, exp: now() + 60 }],
    ['an empty sub', { sub: '', exp: now() + 60 }],
    ['a long sub', { sub: 'x'.repeat(201), exp: now() + 60 }],
    ['a control character', { sub: 'a\nb', exp: now() + 60 }],
    ['a lone surrogate', '{"sub":"\\ud800","exp":9999999999}'],
    ['an object as tenant', { sub: 'ann', tenant: {}, exp: now() + 60 }],
    ['a number as device', { sub: 'ann', device: 1, exp: now() + 60 }],
    ['exp as text', { sub: 'ann', exp: String(now() + 60) }],
    ['iat as text', { sub: 'ann', iat: 'x', exp: now() + 60 }],
    ['exp twice', `{"sub":"ann","exp":${now() - 60},"exp":${now() + 60}}`],
    ['sub twice', `{"sub":"ann","exp":${now() + 60},"sub":"bob"}`],
    ['exp twice, once escaped', `{"sub":"ann","exp":${now() - 60},"\\u0065xp":${now() + 60}}`],
    ['malformed caps', { sub: 'ann', exp: now() + 60, caps: { publish: '*' } }],
    ['an array', [1]],
  ])('%s is refused, though well signed', async (_name, payload) => {
    expect(await codeOf(forge(HS256, payload))).toBe('unauthorized');
  });
});

describe('clocks', () => {
  test('a token from the future is good if it is 5 s away, and none if it is 120', async () => {
    expect(await codeOf(forge(HS256, { ...good(), iat: now() + 5 }))).toBe('ok');
    expect(await codeOf(forge(HS256, { ...good(), nbf: now() + 5 }))).toBe('ok');
    expect(await codeOf(forge(HS256, { ...good(), iat: now() + 120 }))).toBe('unauthorized');
    expect(await codeOf(forge(HS256, { ...good(), nbf: now() + 120 }))).toBe('unauthorized');
  });

  test('an expired one is told so', async () => {
    expect(await codeOf(forge(HS256, { sub: 'ann', exp: now() - 3 }))).toBe('token_expired');
    expect(await codeOf(forge(HS256, { sub: 'ann', exp: now() - 3600 }))).toBe('token_expired');
    expect(await codeOf(forge(HS256, { sub: 'ann', exp: 0 }))).toBe('token_expired');
  });

  test('one that comes in just after its end is good for what is left of two seconds', async () => {
    const exp = now();
    const identity = await verifier.identify(forge(HS256, { sub: 'ann', exp }));
    expect(identity.expiresAt).toBe(exp * 1000 + 2000);
  });

  test('sixty days, and for ever, are no overflow', async () => {
    for (const exp of [now() + 60 * 86_400, 1e12, Number.MAX_SAFE_INTEGER])
      expect((await verifier.identify(forge(HS256, { sub: 'ann', exp }))).expiresAt).toBe(exp * 1000);
  });
});

describe('who somebody is', () => {
  test('is in exactly its own rooms by default, and publishes nothing', async () => {
    const identity = await verifier.identify(forge(HS256, { ...good(), tenant: 'acme', device: 'd/1' }));
    expect(identity).toMatchObject({
      tenant: 'acme',
      user: 'ann',
      device: 'd/1',
      rooms: ['user:ann', 'tenant:acme', 'device:ann/d%2F1'],
      permissions: { subscribe: identity.rooms, publish: [], call: ['ann/*'], register: ['ann/*'] },
    });
  });

  test('a user named with a star is no pattern', async () => {
    const { permissions, rooms } = await verifier.identify(forge(HS256, { ...good(), sub: 'a*/b:%' }));
    expect(rooms[0]).toBe('user:a%2A%2Fb%3A%25');
    expect(permissions.call).toEqual(['a%2A%2Fb%3A%25/*']);
  });
});

test('claims are counted at the top level only, and texts are no structure', () => {
  const token = (payload: string): string => `x.${base64(payload)}.y`;
  expect(hasDuplicateClaims(token('{"a":{"exp":1},"b":[{"exp":1}],"exp":2}'))).toBe(false);
  expect(hasDuplicateClaims(token('{"a":"\\",\\"exp\\":1","exp":2}'))).toBe(false);
  expect(hasDuplicateClaims(token('{"exp":1,"a":"}{","exp":2}'))).toBe(true);
});

describe("an issuer's key set", () => {
  let server: Server | undefined;
  let answer: { status: number; body: string } = { status: 200, body: '' };
  let asked = 0;

  afterEach(() => {
    server?.closeAllConnections();
    server?.close();
    server = undefined;
  });

  async function issuer(port = 0): Promise<string> {
    asked = 0;
    server = createServer((_request, response) => {
      asked++;
      response.writeHead(answer.status, { 'content-type': 'application/json' }).end(answer.body);
    });
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}/keys`;
  }

  async function keyPair(kid: string): Promise<{ jwk: object; sign: (claims?: object) => Promise<string> }> {
    const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    const sign =
      (key: KeyObject) =>
      (claims: object = {}) =>
        new SignJWT({ sub: 'ann', ...claims })
          .setProtectedHeader({ alg: 'ES256', kid })
          .setExpirationTime('1m')
          .sign(key);
    return { jwk: { ...(await exportJWK(publicKey)), kid, alg: 'ES256' }, sign: sign(privateKey) };
  }

  test('an outage is `unavailable`, whatever it looks like, and passes when the issuer is back', async () => {
    const { jwk, sign } = await keyPair('k1');
    const keys = { status: 200, body: JSON.stringify({ keys: [jwk] }) };
    const outages = [
      { status: 500, body: '' },
      { status: 302, body: '' },
      { status: 200, body: '<html>' },
      { status: 200, body: '{"keys":7}' },
      { status: 200, body: 'null' },
    ];
    for (const outage of outages) {
      answer = outage;
      const by = new TokenVerifier({ jwksUrl: await issuer(), algorithm: 'ES256' });
      expect(await codeOf(await sign(), by), JSON.stringify(outage)).toBe('unavailable');
      server?.close();
    }
    answer = keys;
    const url = await issuer();
    const { port } = new URL(url);
    server?.closeAllConnections();
    server?.close();
    const by = new TokenVerifier({ jwksUrl: url, algorithm: 'ES256' });
    expect(await codeOf(await sign(), by)).toBe('unavailable');
    await issuer(Number(port));
    await expect.poll(async () => codeOf(await sign(), by), { timeout: 5000, interval: 200 }).toBe('ok');
  });

  test('keys that were fetched once stay good while the issuer is away, and a new key is found when it is back', async () => {
    const [first, second] = [await keyPair('k1'), await keyPair('k2')];
    answer = { status: 200, body: JSON.stringify({ keys: [first.jwk] }) };
    let time = 0;
    const keys = new KeySet(await issuer(), () => time);
    const find = (kid: string) => keys.find({ alg: 'ES256', kid }, { payload: '', signature: '' });
    await find('k1');
    answer = { status: 503, body: '' };
    time += 3_600_000;
    await find('k1');
    await find('k1');
    await expect(find('k2')).rejects.toMatchObject({ code: 'unavailable' });
    answer = { status: 200, body: JSON.stringify({ keys: [first.jwk, second.jwk] }) };
    await expect(find('k2')).rejects.toMatchObject({ code: 'unavailable' });
    time += 31_000;
    await find('k2');
    await find('k1');
  });

  test('unknown key ids do not make the relay ask its issuer again and again', async () => {
    const { jwk } = await keyPair('k1');
    answer = { status: 200, body: JSON.stringify({ keys: [jwk] }) };
    const keys = new KeySet(await issuer());
    const find = (kid: string) => keys.find({ alg: 'ES256', kid }, { payload: '', signature: '' });
    const outcomes = await Promise.allSettled(Array.from({ length: 200 }, (_, index) => find(`made-up-${index}`)));
    expect(outcomes.every(({ status }) => status === 'rejected')).toBe(true);
    expect(asked).toBe(1);
  });

  test('a key that the issuer made during the cool-down is `unavailable`, and good after it; one that it never made is refused', async () => {
    const [first, second] = [await keyPair('k1'), await keyPair('k2')];
    answer = { status: 200, body: JSON.stringify({ keys: [first.jwk] }) };
    let time = 0;
    const keys = new KeySet(await issuer(), () => time);
    const find = (kid: string) => keys.find({ alg: 'ES256', kid }, { payload: '', signature: '' });
    await find('k1');
    time += 60_000;
    await expect(find('made-up')).rejects.toMatchObject({ code: 'ERR_JWKS_NO_MATCHING_KEY' });
    answer = { status: 200, body: JSON.stringify({ keys: [first.jwk, second.jwk] }) };
    for (let tries = 0; tries < 20; tries++) {
      time += 1000;
      await expect(find('k2')).rejects.toMatchObject({ code: 'unavailable' });
    }
    expect(asked).toBe(2);
    time += 11_000;
    await find('k2');
    expect(asked).toBe(3);
  });

  test('a fetch that was under way when a token came does not refuse it', async () => {
    const { jwk } = await keyPair('k1');
    answer = { status: 200, body: JSON.stringify({ keys: [jwk] }) };
    let time = 0;
    const keys = new KeySet(await issuer(), () => time);
    const find = (kid: string) => keys.find({ alg: 'ES256', kid }, { payload: '', signature: '' });
    const early = find('k2');
    time += 1;
    const late = find('k2');
    await expect(early).rejects.toMatchObject({ code: 'ERR_JWKS_NO_MATCHING_KEY' });
    await expect(late).rejects.toMatchObject({ code: 'unavailable' });
  });

  test('a key of the issuer that cannot be used is not the fault of the token', async () => {
    const { sign } = await keyPair('k1');
    const jwk = { kty: 'EC', crv: 'P-256', x: 'AAAA', y: 'AAAA', kid: 'k1', alg: 'ES256' };
    answer = { status: 200, body: JSON.stringify({ keys: [jwk] }) };
    const by = new TokenVerifier({ jwksUrl: await issuer(), algorithm: 'ES256' });
    expect(await codeOf(await sign(), by)).toBe('unavailable');
  });

  test('a key that is too short for the algorithm is a fault, not a refusal of the token', async () => {
    const { publicKey, privateKey } = generateKeyPairSync('rsa', { modulusLength: 1024 });
    answer = { status: 200, body: JSON.stringify({ keys: [{ ...(await exportJWK(publicKey)), kid: 'k1' }] }) };
    const by = new TokenVerifier({ jwksUrl: await issuer(), algorithm: 'RS256' });
    const text = `${base64({ alg: 'RS256', kid: 'k1' })}.${base64(good())}`;
    const token = `${text}.${createSign('sha256').update(text).sign(privateKey, 'base64url')}`;
    const error = await by.identify(token).catch((reason: unknown) => reason);
    expect(toWireError(error).code).toBe('internal');
  });

  test('nobody is let in by a key of another algorithm', async () => {
    const { jwk, sign } = await keyPair('k1');
    answer = { status: 200, body: JSON.stringify({ keys: [jwk] }) };
    const by = new TokenVerifier({ jwksUrl: await issuer(), algorithm: 'RS256' });
    expect(await codeOf(await sign(), by)).toBe('unauthorized');
  });
});
