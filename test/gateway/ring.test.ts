import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Delivery } from '../../src/gateway/frames.js';
import { Ring } from '../../src/gateway/ring.js';
import type { Entry } from '../../src/log/index.js';

const ROOMS = ['a', 'b', 'c', 'd'];

function delivery(offset: number, rooms: readonly string[], size: number): Delivery {
  const header = { version: 1, rooms, publisher: '', id: '' };
  const entry: Entry = { ms: offset * 10, offset, header, payload: Buffer.from('["e"]'), attachments: [], size };
  return new Delivery(entry, `e:0:${offset * 10}-${offset}`);
}

const pushes = fc.array(
  fc.record({
    rooms: fc.subarray(ROOMS, { minLength: 1 }),
    size: fc.integer({ min: 1, max: 60 }),
    jump: fc.integer({ min: 0, max: 30 }),
  }),
  { minLength: 1, maxLength: 200 },
);
const joins = fc.dictionary(fc.constantFrom(...ROOMS, 'nobody'), fc.nat(250));

test('pages bring what a scan of the newest entries would, each once, in order, and bounded', () => {
  fc.assert(
    fc.property(
      pushes,
      joins,
      fc.integer({ min: 100, max: 2000 }),
      fc.integer({ min: 1, max: 300 }),
      (list, joined, maxBytes, pageBytes) => {
        const ring = new Ring(maxBytes);
        ring.reset(1);
        let kept: Delivery[] = [];
        let offset = 0;
        for (const { rooms, size, jump } of list) {
          // one in thirty is behind a hole: what stood before it is forgotten
          if (jump === 30) kept = [];
          offset += jump === 30 ? 5 : 1;
          const next = delivery(offset, rooms, size);
          ring.push(next);
          kept.push(next);
          while (kept.length > 1 && kept.reduce((sum, { entry }) => sum + entry.size, 0) > maxBytes) kept.shift();
        }
        expect(ring.next).toBe(offset + 1);
        expect(ring.bytes).toBe(kept.reduce((sum, { entry }) => sum + entry.size, 0));
        expect(ring.covers(offset)).toBe(true);
        expect(ring.covers((kept[0] as Delivery).offset - 1)).toBe(true);
        expect(ring.covers((kept[0] as Delivery).offset - 2)).toBe(false);

        const rooms = new Map(Object.entries(joined));
        const start = (kept[0] as Delivery).offset - 1;
        const wanted = kept.filter(({ entry }) =>
          entry.header.rooms.some((room) => (rooms.get(room) ?? Infinity) < entry.offset),
        );
        const got: Delivery[] = [];
        for (let after = start; after < offset; ) {
          const page = ring.page(after, rooms, pageBytes);
          if (page.deliveries.length > 1)
            expect(page.deliveries.reduce((sum, { entry }) => sum + entry.size, 0)).toBeLessThanOrEqual(
              Math.max(pageBytes, 60),
            );
          expect(page.scanned).toBeGreaterThan(after);
          got.push(...page.deliveries);
          after = page.scanned;
        }
        expect(got.map((one) => one.offset)).toEqual(wanted.map((one) => one.offset));
        expect(got.every((one) => ring.get(one.offset) === one)).toBe(true);
      },
    ),
    { numRuns: 500 },
  );
});

test('a packet is the payload with the position last, in whichever length of frame', () => {
  for (const length of [1, 90, 125, 126, 200, 65_400, 65_535, 65_536, 70_000]) {
    const payload = Buffer.from(JSON.stringify(['e', 'é'.repeat(length), { room: 'r' }]));
    const header = { version: 1, rooms: ['r'], publisher: '', id: '' };
    const one = new Delivery({ ms: 1, offset: 2, header, payload, attachments: [], size: 1 }, 'e:0:1-2');
    for (const [packet, last] of [
      [one.packet, 'e:0:1-2'],
      [one.replayPacket, undefined],
    ] as const) {
      const { frames } = packet;
      const short = frames[1] as number;
      const skip = short < 126 ? 2 : short === 126 ? 4 : 10;
      const size = short < 126 ? short : short === 126 ? frames.readUInt16BE(2) : Number(frames.readBigUInt64BE(2));
      expect(frames[0]).toBe(0x81);
      expect(frames.length - skip).toBe(size);
      const text = frames.toString('utf8', skip);
      expect(text).toBe(`4${packet.parts()[0]}`);
      expect(JSON.parse(text.slice(2))).toEqual([...JSON.parse(payload.toString()), ...(last ? [last] : [])]);
    }
  }
});
