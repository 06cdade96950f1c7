import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { decodeHeader, encodeEntry } from '../../src/wire/envelope.js';
import { escapePart, isName, isPublishableEvent, isRoom, scoped } from '../../src/wire/names.js';
import { formatPosition, parsePosition } from '../../src/wire/position.js';

const anything = fc.oneof(fc.string({ unit: 'binary' }), fc.anything());

describe('positions', () => {
  const position = fc.record({
    epoch: fc.stringMatching(/^[0-9A-Za-z_-]{1,16}$/),
    partition: fc.nat(1023),
    ms: fc.nat(2 ** 48),
    offset: fc.integer({ min: 0, max: 999_999_999_999_999 }),
  });

  test('what is written is what is read', () => {
    fc.assert(
      fc.property(position, (at) => {
        expect(parsePosition(formatPosition(at.epoch, at.partition, at.ms, at.offset))).toEqual(at);
      }),
    );
  });

  test('what is read is what would be written, leading zeros aside, and nothing else parses', () => {
    fc.assert(
      fc.property(anything, (text) => {
        const at = parsePosition(text);
        if (at) expect(typeof text === 'string' && /^[\w-]{1,16}:\d+:\d+-\d+$/.test(text)).toBe(true);
      }),
    );
    for (const text of [
      'e:0:1-1\n',
      ' e:0:1-1',
      'e:0:1-',
      'e:0:-1-1',
      ':0:1-1',
      'e:0:1-1-1',
      `e:0:1-${'9'.repeat(16)}`,
    ])
      expect(parsePosition(text), text).toBeUndefined();
  });
});

describe('names', () => {
  test('unicode and separators are legal, up to 200 characters', () => {
    for (const name of [
      'a',
      'a/b',
      'a:b',
      'a*b',
      '%2F',
      '../..',
      '{x}',
      '日本語',
      '💧',
      'é'.repeat(200),
      '__proto__',
      ' ',
    ])
      expect(isName(name), name).toBe(true);
  });

  test('control characters, halves of characters, other types and 201 characters are not', () => {
    for (const name of [
      '',
      'a\n',
      '\0',
      '\u007f',
      '\u0085',
      '\ud800',
      'a\udc00',
      'x'.repeat(201),
      1,
      null,
      undefined,
      [],
      {},
      ['a'],
    ])
      expect(isName(name), String(name)).toBe(false);
  });

  test('no name is longer on its way, or becomes another one', () => {
    fc.assert(
      fc.property(anything, (name) => {
        if (!isName(name)) return;
        expect(Buffer.from(name).toString()).toBe(name);
        expect(JSON.parse(JSON.stringify(name))).toBe(name);
        expect(decodeURIComponent(escapePart(name))).toBe(name);
        expect(escapePart(name)).not.toMatch(/[/*:]/);
      }),
    );
  });

  test('two lists of parts never give one text', () => {
    const parts = fc.array(fc.string({ unit: fc.constantFrom('a', '/', '%', '2', 'F', '*', 'é'), minLength: 1 }), {
      minLength: 1,
      maxLength: 4,
    });
    fc.assert(
      fc.property(parts, parts, (one, other) => {
        expect(scoped(...one) === scoped(...other)).toBe(JSON.stringify(one) === JSON.stringify(other));
      }),
      { numRuns: 2000 },
    );
  });

  test("a room of the relay's own is one, however long escaping made it, and nothing else is longer than a name", () => {
    const cjk = '日本語'.repeat(60);
    const rooms = [
      `user:${escapePart(cjk)}`,
      `tenant:${escapePart(cjk)}`,
      `device:${escapePart(cjk)}/${escapePart('💧'.repeat(100))}`,
    ];
    for (const room of rooms) {
      expect(isName(room)).toBe(false);
      expect(isRoom(room)).toBe(true);
      for (const other of [
        `${room}/x`,
        `${room}%0A`,
        `x${room}`,
        room.replace(':', ':/'),
        room.toLowerCase(),
        `${room}%`,
      ])
        expect(isRoom(other), other.slice(0, 20)).toBe(false);
    }
    expect(isRoom(`user:${'x'.repeat(201)}`)).toBe(false);
    expect(isRoom(`user:${escapePart('日'.repeat(201))}`)).toBe(false);
    fc.assert(
      fc.property(anything, (text) => {
        if (isName(text))
          expect(isRoom(`user:${escapePart(text)}`) && isRoom(`device:${escapePart(text)}/${escapePart(text)}`)).toBe(
            true,
          );
      }),
    );
  });

  test("nobody publishes the relay's own events, or Socket.IO's", () => {
    for (const event of [
      'holdfast:gap',
      'holdfast:',
      'rpc-call',
      'rpc-',
      'device:throttled',
      'presence',
      'connect',
      'connect_error',
      'disconnect',
      'disconnecting',
      'error',
      'newListener',
      'removeListener',
      'connection',
      '',
      1,
    ])
      expect(isPublishableEvent(event), String(event)).toBe(false);
    for (const event of [
      'message',
      'Presence',
      'rpc',
      'my-rpc-call',
      'holdfast',
      '__proto__',
      'constructor',
      'toString',
    ])
      expect(isPublishableEvent(event), event).toBe(true);
  });
});

describe("an entry's header", () => {
  test('comes back as it was, whatever the names hold, and stays one line', () => {
    const text = fc.string({ unit: 'binary' });
    fc.assert(
      fc.property(fc.array(text), text, text, (rooms, publisher, id) => {
        const [line, ...rest] = encodeEntry({ rooms, publisher, id }, '["e"]').split('\n');
        expect(rest).toEqual(['["e"]']);
        expect(decodeHeader(line as string)).toMatchObject({ version: 1, kind: 'event', rooms, publisher, id });
      }),
    );
  });

  test('anything else is not ours, and another version is known as one', () => {
    fc.assert(
      fc.property(fc.oneof(fc.string(), fc.json()), (line) => {
        const header = decodeHeader(line);
        if (header) expect(Number.isInteger(header.version)).toBe(true);
      }),
    );
    expect(decodeHeader('{"v":2,"x":1}')).toMatchObject({ version: 2, rooms: [] });
    for (const line of [
      '',
      'x',
      'null',
      '[]',
      '{}',
      '{"v":"1"}',
      '{"v":1}',
      '{"v":1,"r":"x","p":"","i":""}',
      '{"v":1,"r":[1],"p":"","i":""}',
    ])
      expect(decodeHeader(line), line).toBeUndefined();
  });
});
