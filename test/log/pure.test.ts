import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseEntry, parseId } from '../../src/log/entry.js';
import { type EpochRecord, epochsSince, lostOffsets, parseHistory, survivingTail } from '../../src/log/epochs.js';
import { OffsetTimes } from '../../src/log/offset-times.js';
import { partitionOf } from '../../src/log/partition-of.js';
import { formatSavedPosition, parseSavedPosition } from '../../src/log/saved-position.js';
import { Watermark } from '../../src/log/watermark.js';
import { RedisClock } from '../../src/redis/clock.js';
import { encodeEntry } from '../../src/wire/envelope.js';

const name = fc.stringMatching(/^[0-9A-Za-z_-]{1,16}$/);
const place = fc.record({ ms: fc.nat(), offset: fc.nat(1_000_000) });
const record: fc.Arbitrary<EpochRecord> = fc.record({
  epoch: name,
  tail: place,
  reason: fc.constantFrom('new', 'deleted', 'meta', 'behind', 'forked'),
  lost: place,
});
const history = fc.uniqueArray(record, { maxLength: 12, selector: ({ epoch }) => epoch });

const textOf = (records: readonly EpochRecord[]): string =>
  records
    .map(({ epoch, tail, reason, lost }) => `${epoch},${tail.ms}-${tail.offset},${reason},${lost.ms}-${lost.offset};`)
    .join('');

describe('epoch history', () => {
  it('comes back from its text, and from one cut anywhere as a beginning of it', () => {
    fc.assert(
      fc.property(history, fc.nat(), (records, cut) => {
        const text = textOf(records);
        expect(parseHistory(text)).toEqual(records);
        const part = parseHistory(text.slice(0, cut % (text.length + 1)));
        expect(part).toEqual(records.slice(0, part.length));
      }),
    );
  });

  it('any text parses', () => {
    fc.assert(fc.property(fc.string(), (text) => void parseHistory(text)));
  });

  it('a position survives up to the oldest tail since its epoch, and nothing of an unknown one does', () => {
    fc.assert(
      fc.property(history, fc.nat(), (records, at) => {
        expect(survivingTail(records, 'no such epoch')).toEqual({ ms: 0, offset: 0 });
        const own = records[at % Math.max(1, records.length)];
        if (!own) return;
        const since = epochsSince(records, own.epoch);
        const tail = survivingTail(records, own.epoch);
        if (since.length === 0) expect(tail).toBeUndefined();
        else expect(tail?.offset).toBe(Math.min(...since.map((epoch) => epoch.tail.offset)));
      }),
    );
  });
});

describe('what an epoch lost', () => {
  const turn = (reason: EpochRecord['reason'], tail: number, lost = 0): EpochRecord[] => [
    { epoch: 'new', reason, tail: { ms: 1, offset: tail }, lost: { ms: 1, offset: lost } },
  ];
  const knew = (offset: number, seen = offset, tail = offset) => ({ offset, seen, tail });

  it.each([
    ['meta gone, all read', turn('meta', 10), knew(10), 10, undefined],
    ['meta gone, four not read yet: they will come', turn('meta', 10), knew(6, 10, 10), 6, undefined],
    ['an older copy, all of it read', turn('behind', 6, 10), knew(10), 6, { from: 7, to: 10 }],
    ['an older copy, read up to inside it', turn('behind', 6, 10), knew(4), 4, { from: 7, to: 10 }],
    ['an older copy; only the heartbeat saw the newest', turn('behind', 6, 7), knew(6, 6, 9), 6, { from: 7, to: 9 }],
    ['a fork; another pod knew of the lost ones', turn('forked', 2, 5), knew(4), 4, { from: 3, to: 5 }],
    ['a fork behind another fork', turn('behind', 120, 0), knew(100), 60, { from: 61, to: 100 }],
    ['everything gone', turn('new', 0), knew(10, 12, 11), 0, { from: 10, to: 12 }],
    ['everything gone, of which nothing was known', turn('new', 0), knew(0), 0, undefined],
    ['the stream gone, its end known', turn('deleted', 0, 12), knew(10), 0, { from: 10, to: 12 }],
  ] as const)('%s', (_name, since, old, survived, lost) => {
    expect(lostOffsets(since, old, survived)).toEqual(lost);
  });

  it('names what was dispatched and is gone, and nothing that is below the branch and survived', () => {
    fc.assert(
      fc.property(
        fc.array(record, { minLength: 1, maxLength: 4 }),
        fc.nat(1000),
        fc.nat(1000),
        (since, offset, below) => {
          const survived = Math.min(offset, below);
          const lost = lostOffsets(since, knew(offset), survived);
          if (survived < offset) {
            expect(lost?.to).toBeGreaterThanOrEqual(offset);
            expect(lost?.from).toBeLessThanOrEqual(survived === 0 ? offset : survived + 1);
          }
          const branch = Math.min(...since.map(({ tail }) => tail.offset));
          if (lost && survived > 0) expect(lost.from).toBeGreaterThan(Math.min(survived, branch));
        },
      ),
    );
  });
});

describe('OffsetTimes', () => {
  const SIZE = 131_072;

  it('tells the ms of what it was told, and of nothing else', () => {
    fc.assert(
      fc.property(
        fc.array(
          fc.oneof(
            fc.integer({ min: 1, max: 3 }),
            fc.constantFrom(SIZE - 1, SIZE, 3 * SIZE),
            fc.integer({ min: -200, max: -1 }),
          ),
        ),
        (steps) => {
          const times = new OffsetTimes();
          const told = new Map<number, number>();
          let offset = 1000;
          let newest = 0;
          for (const [index, step] of steps.entries()) {
            offset = Math.max(1, offset + step);
            times.set(offset, 1_000_000 + index);
            // a fall-back forgets what was above it
            for (const key of told.keys()) if (key > offset) told.delete(key);
            told.set(offset, 1_000_000 + index);
            newest = offset;
          }
          const probes = [
            ...told.keys(),
            ...[...told.keys()].flatMap((key) => [key - 1, key + 1, key - SIZE, key + SIZE]),
          ];
          for (const probe of probes) {
            const got = times.get(probe);
            if (got !== undefined) expect(got).toBe(told.get(probe));
            // what is within its size it remembers, unless the log fell back meanwhile
            if (steps.every((step) => step > 0) && told.has(probe) && probe > newest - SIZE)
              expect(got).toBe(told.get(probe));
          }
        },
      ),
      { numRuns: 60 },
    );
  });
});

describe('entries', () => {
  const id = (seq: number) => parseId(`1700000000000-${seq}`);

  it('what we append comes back', () => {
    fc.assert(
      fc.property(
        fc.record({ rooms: fc.array(fc.string(), { maxLength: 3 }), publisher: fc.string(), id: fc.string() }),
        fc.string(),
        fc.array(fc.uint8Array(), { maxLength: 3 }),
        fc.integer({ min: 1, max: 1e9 }),
        (header, payload, parts, offset) => {
          const attachments = parts.map((part) => Buffer.from(part));
          const fields = [Buffer.from(String(offset)), Buffer.from(encodeEntry(header, payload))];
          for (const part of attachments) fields.push(Buffer.from('a'), part);
          const entry = parseEntry(id(offset), fields);
          expect(entry).toMatchObject({ offset, header });
          if (typeof entry === 'string') return;
          expect(entry.payload.toString('utf8')).toBe(Buffer.from(payload).toString('utf8'));
          expect(entry.attachments).toEqual(attachments);
        },
      ),
    );
  });

  it('a stranger’s fields are foreign, whatever they hold, and so is ours under another id', () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array().map((bytes) => Buffer.from(bytes))), (fields) => {
        expect(parseEntry(id(7), fields)).toBe('foreign');
      }),
    );
    const ours = [Buffer.from('6'), Buffer.from(encodeEntry({ rooms: [], publisher: '', id: '' }, '[]'))];
    expect(parseEntry(id(7), ours)).toBe('foreign');
    expect(parseEntry(id(6), ours)).not.toBe('foreign');
  });

  it('an id beyond what a number holds is kept as text', () => {
    expect(parseId('18446744073709551615-18446744073709551615').text).toBe('18446744073709551615-18446744073709551615');
  });
});

describe('a saved position', () => {
  it('comes back from its text, as committed and as a heartbeat answers it; anything else is none', () => {
    const at = { id: '17-4', ms: 17, offset: 4, epoch: 'e_-1' };
    const text = `${formatSavedPosition(17, 4)} e_-1`;
    expect(parseSavedPosition(text)).toEqual({ ...at, holder: undefined });
    expect(parseSavedPosition(`${text} process 99`)).toEqual({
      ...at,
      holder: { processId: 'process', committedAt: 99 },
    });
    for (const wrong of ['', '17-4', '17-4 4', `${text} process`, `${text} process x`, `x ${text}`])
      expect(parseSavedPosition(wrong)).toBeUndefined();
  });
});

describe('small parts', () => {
  it('a watermark rises within an epoch and never goes back to an older one', () => {
    const watermark = new Watermark();
    watermark.see('one', 10, 5);
    watermark.see('one', 9, 4);
    expect(watermark).toMatchObject({ epoch: 'one', ms: 10, offset: 5 });
    watermark.see('two', 11, 2);
    watermark.begin('two');
    watermark.see('one', 12, 9);
    expect(watermark).toMatchObject({ epoch: 'two', ms: 11, offset: 2 });
    expect(['one', 'two', 'three'].map((epoch) => watermark.endOf(epoch))).toEqual([5, 2, 0]);
  });

  it('a tenant has one partition, and partitions have about as many tenants', () => {
    const counts = [0, 0, 0, 0];
    for (let n = 0; n < 4000; n++) {
      const partition = partitionOf(`tenant-${n}`, 4);
      expect(partitionOf(`tenant-${n}`, 4)).toBe(partition);
      counts[partition] = (counts[partition] ?? 0) + 1;
    }
    for (const count of counts) expect(Math.abs(count - 1000)).toBeLessThan(150);
    expect(partitionOf('anything', 1)).toBe(0);
  });

  it('Redis’s time is known once it was told, and not over another connection', () => {
    const clock = new RedisClock();
    expect(clock.isKnown).toBe(false);
    clock.learn(1_000_000);
    expect(clock.isKnown).toBe(true);
    expect(clock.at(performance.now() + 500)).toBeGreaterThanOrEqual(1_000_499);
    clock.doubt();
    expect(clock.isKnown).toBe(false);
    expect(clock.at()).toBeLessThan(1_010_000); // the old estimate is better than none
  });
});
