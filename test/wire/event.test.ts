import { describe, expect, test } from 'vitest';
import { type CheckedEvent, checkEvent, composeEvent } from '../../src/wire/event.js';

const origin = { tenant: 'acme/x', publisher: 'user:ann', newId: 'made', at: 7 };
const compose = (checked: CheckedEvent) => composeEvent(checked, origin, 1000);

describe('what is to be published', () => {
  test.each([
    [{ event: 'e' }, 'room: wants 1 to 200 characters without control characters'],
    [{ room: 'r', event: '' }, 'event: wants 1 to 200 characters without control characters'],
    [{ room: 'r', event: 'rpc-x' }, 'event: "rpc-x" is reserved'],
    [{ room: 'r', event: 'e', id: 'a\n' }, 'id: wants 1 to 200 characters without control characters'],
  ])('%j is refused by its field', (request, message) => {
    expect(() => checkEvent(request)).toThrow(message);
  });

  test('may go to a room of the relay’s own that is longer than a name', () => {
    const room = `user:${'%E6%97%A5'.repeat(100)}`;
    expect(checkEvent({ room, event: 'e' })).toMatchObject({ room, data: null });
  });

  test('is as deep as every parser follows', () => {
    const nested = (depth: number): unknown => JSON.parse('['.repeat(depth) + ']'.repeat(depth));
    expect(checkEvent({ room: 'r', event: 'e', data: nested(1000) }).isBinary).toBe(false);
    for (const depth of [1001, 5000])
      expect(() => checkEvent({ room: 'r', event: 'e', data: nested(depth) })).toThrow(/nested more than 1000 levels/);
  });

  test('is binary if any part of it is', () => {
    const isBinary = (data: unknown) => checkEvent({ room: 'r', event: 'e', data }).isBinary;
    expect(isBinary({ a: [new Uint8Array(1)] })).toBe(true);
    expect(isBinary(new ArrayBuffer(1))).toBe(true);
    expect(isBinary({ a: ['x'] })).toBe(false);
  });
});

describe('an event', () => {
  test('is scoped by tenant, and has the id that its publisher set, or a new one', () => {
    const mine = compose(checkEvent({ room: 'r', event: 'e', data: 1, id: 'i' }));
    expect(mine).toMatchObject({
      room: 'acme%2Fx/r',
      payload: '["e",1,{"room":"r","id":"i","at":7}]',
      attachments: [],
      idempotency: { scope: 'acme%2Fx/user%3Aann', id: 'i' },
    });
    expect(mine.body.endsWith(`\n${mine.payload}`)).toBe(true);
    const made = compose(checkEvent({ room: 'r', event: 'e' }));
    expect(made).toMatchObject({ payload: '["e",null,{"room":"r","id":"made","at":7}]', idempotency: undefined });
  });

  test('has a limit in bytes, binary parts among them', () => {
    const text = checkEvent({ room: 'r', event: 'e', data: 'é'.repeat(500) });
    expect(() => compose(text)).toThrow(/^the event has 10\d\d bytes, the limit is 1000$/);
    const encode = () => ({ payload: '[]', attachments: [new Uint8Array(999)] });
    expect(() => composeEvent(text, origin, 1000, encode)).toThrow('the event has 1001 bytes, the limit is 1000');
    expect(composeEvent(text, origin, 1001, encode).attachments).toHaveLength(1);
  });
});
