import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Delivery, encodeEvent, joinParcels, Slabs } from '../../src/gateway/frames.js';
import { Ring } from '../../src/gateway/ring.js';
import type { Entry } from '../../src/log/index.js';
import { decodeHeader, encodeEntry } from '../../src/wire/envelope.js';

const slabs = new Slabs();
const ROOMS = ['a', 'b', 'c', 'd'];

interface What {
  readonly rooms: readonly string[];
  readonly except: readonly string[];
  readonly size: number;
  readonly isControl: boolean;
}

function delivery(offset: number, { rooms, except, size, isControl }: What): Delivery {
  const header = decodeHeader(
    encodeEntry({ rooms, publisher: '', id: '', except, ...(isControl && { kind: 'join' }) }, '').trim(),
  );
  if (!header) throw new Error('no header');
  const entry: Entry = { ms: offset * 10, offset, header, payload: Buffer.from('["e"]'), attachments: [], size };
  return new Delivery(entry, { epoch: 'e', partition: 0 }, slabs);
}

const pushes = fc.array(
  fc.record({
    rooms: fc.subarray(ROOMS, { minLength: 1 }),
    except: fc.subarray(ROOMS, { maxLength: 1 }),
    size: fc.integer({ min: 1, max: 60 }),
    isControl: fc.integer({ min: 0, max: 9 }).map((n) => n === 0),
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
        for (const { jump, ...what } of list) {
          // one in thirty is behind a hole: what stood before it is forgotten
          if (jump === 30) kept = [];
          offset += jump === 30 ? 5 : 1;
          const next = delivery(offset, what);
          ring.push(next);
          kept.push(next);
          while (kept.length > 1 && kept.reduce((sum, { size }) => sum + size, 0) > maxBytes) kept.shift();
        }
        expect(ring.next).toBe(offset + 1);
        expect(ring.bytes).toBe(kept.reduce((sum, { size }) => sum + size, 0));
        expect(ring.covers(offset)).toBe(true);
        expect(ring.covers((kept[0] as Delivery).offset - 1)).toBe(true);
        expect(ring.covers((kept[0] as Delivery).offset - 2)).toBe(false);

        const rooms = new Map(Object.entries(joined));
        const start = (kept[0] as Delivery).offset - 1;
        const isIn = (names: readonly string[], at: number): boolean =>
          names.some((room) => (rooms.get(room) ?? Infinity) < at);
        const wanted = kept.filter(({ header, offset: at }) => isIn(header.rooms, at) && !isIn(header.except, at));
        const got: Delivery[] = [];
        for (let after = start; after < offset; ) {
          const page = ring.page(after, rooms, pageBytes);
          if (page.deliveries.length > 1)
            expect(page.deliveries.reduce((sum, { size }) => sum + size, 0)).toBeLessThanOrEqual(
              Math.max(pageBytes, 60),
            );
          expect(page.scanned).toBeGreaterThan(after);
          got.push(...page.deliveries);
          expect(page.deliveries.every(({ header }) => header.kind === 'event')).toBe(true);
          if (page.control) {
            expect(page.scanned).toBe(page.control.offset);
            got.push(page.control);
          }
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
  for (const length of [1, 90, 125, 126, 200, 65_400, 65_535, 65_536, 70_000])
    for (const namespace of ['/', '/é']) {
      const payload = Buffer.from(JSON.stringify(['e', 'é'.repeat(length), { room: 'r' }]));
      const header = decodeHeader(encodeEntry({ rooms: ['r'], publisher: '', id: '', namespace }, '').trim());
      if (!header) throw new Error('no header');
      const entry: Entry = { ms: 1, offset: 2, header, payload, attachments: [], size: 1 };
      for (const place of [{ epoch: 'e', partition: 0 }, undefined]) {
        const { frames } = new Delivery(entry, place, slabs).parcel;
        const short = frames[1] as number;
        const skip = short < 126 ? 2 : short === 126 ? 4 : 10;
        const size = short < 126 ? short : short === 126 ? frames.readUInt16BE(2) : Number(frames.readBigUInt64BE(2));
        expect(frames[0]).toBe(0x81);
        expect(frames.length - skip).toBe(size);
        const text = frames.toString('utf8', skip);
        const lead = namespace === '/' ? '42' : `42${namespace},`;
        expect(text.startsWith(lead)).toBe(true);
        expect(JSON.parse(text.slice(lead.length))).toEqual([
          ...JSON.parse(payload.toString()),
          ...(place ? ['e:0:1-2'] : []),
        ]);
      }
    }
});

test('packets that were joined come apart as they were, attachments with them', () => {
  const parts = fc.array(
    fc.record({ text: fc.string(), attachments: fc.array(fc.uint8Array({ maxLength: 300 }), { maxLength: 3 }) }),
    { minLength: 1, maxLength: 5 },
  );
  fc.assert(
    fc.property(parts, (list) => {
      const parcels = list.map(({ text, attachments }) =>
        encodeEvent(Buffer.from(JSON.stringify([text])), attachments, 'p'),
      );
      expect(joinParcels(parcels).packets()).toEqual(
        list.map(({ text, attachments }) => [
          `${attachments.length > 0 ? `5${attachments.length}-` : '2'}${JSON.stringify([text, 'p'])}`,
          ...attachments.map((part) => Buffer.from(part)),
        ]),
      );
    }),
  );
});
