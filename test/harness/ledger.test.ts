import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { formatPosition, parsePosition } from '../../src/wire/position.js';
import {
  type Attempt,
  checkLedger,
  type Delivery,
  type Fault,
  isClean,
  type LedgerInput,
  type Offer,
  type Outcome,
  printLedger,
  type Subscriber,
  type ToldGap,
} from './ledger.js';

const T0 = 1_700_000_000_000;
const at = (offset: number, epoch = 'e1', partition = 0): string =>
  formatPosition(epoch, partition, T0 + offset, offset);
const accepted = (position: string): Outcome => ({ kind: 'accepted', position });
const refused: Outcome = { kind: 'refused' };
const unknown: Outcome = { kind: 'unknown' };

function offer(id: string, ...outcomes: Outcome[]): Offer {
  const attempts = outcomes.map(
    (outcome, i): Attempt => ({ outcome, startedAt: T0 + 100 * i, endedAt: T0 + 100 * i + 10 }),
  );
  return { id, room: 'r', attempts };
}

/** `a` stands at 1, `b` at 2 and so on. */
function offersOf(ids: string): Offer[] {
  return [...ids].map((id, index) => offer(id, accepted(at(index + 1))));
}

function subscriber(deliveries: readonly Delivery[], more: Partial<Subscriber> = {}): Subscriber {
  return { name: 's', subscriptions: [{ room: 'r', position: at(0), at: T0 }], deliveries, gaps: [], ...more };
}

/** Deliveries at the positions of `offersOf`. */
function got(ids: string): Delivery[] {
  return [...ids].map((id) => ({ id, position: at('abcdefgh'.indexOf(id) + 1) }));
}

/** Written after a failover: a smaller offset, but later. */
const later = formatPosition('e2', 0, T0 + 1000, 3);

const unplaced = (ids: string): Delivery[] => [...ids].map((id) => ({ id }));

describe('finds', () => {
  const table: readonly (readonly [string, Fault, LedgerInput])[] = [
    ['a loss', 'lost', { offers: offersOf('abc'), subscribers: [subscriber(got('ac'))] }],
    ['a loss at the end', 'lost', { offers: offersOf('abc'), subscribers: [subscriber(got('ab'))] }],
    ['a double', 'doubled', { offers: offersOf('abc'), subscribers: [subscriber(got('abcb'))] }],
    ['a double without positions', 'doubled', { offers: offersOf('abc'), subscribers: [subscriber(unplaced('abbc'))] }],
    [
      'a retry that landed twice',
      'doubled',
      { offers: [offer('a', accepted(at(1)), accepted(at(2)))], subscribers: [] },
    ],
    [
      'a return from the next epoch',
      'outOfOrder',
      {
        offers: [...offersOf('a'), offer('b', accepted(at(2, 'e2')))],
        subscribers: [subscriber([{ id: 'b', position: at(2, 'e2') }, ...got('a')])],
      },
    ],
    ['a swap', 'outOfOrder', { offers: offersOf('abc'), subscribers: [subscriber(got('acb'))] }],
    [
      'a swap in a replay without positions',
      'outOfOrder',
      { offers: offersOf('abc'), subscribers: [subscriber(unplaced('acb'))] },
    ],
    [
      'two subscribers whose order differs where no position is known',
      'outOfOrder',
      {
        offers: [offer('x', unknown), offer('y', unknown)],
        subscribers: [subscriber(unplaced('xy')), subscriber(unplaced('yx'))],
      },
    ],
    [
      'two subscribers who saw an entry at different places',
      'outOfOrder',
      {
        offers: [offer('x', unknown)],
        subscribers: [subscriber([{ id: 'x', position: at(1) }]), subscriber([{ id: 'x', position: at(2) }])],
      },
    ],
    [
      'two entries at one place',
      'outOfOrder',
      {
        offers: [offer('x', unknown), offer('y', unknown)],
        subscribers: [subscriber([{ id: 'x', position: at(1) }]), subscriber([{ id: 'y', position: at(1) }])],
      },
    ],
    [
      'a gap over what is still there',
      'falseGaps',
      {
        offers: offersOf('abc'),
        subscribers: [subscriber(got('abc'), { gaps: [{ partition: 0, from: 2, to: 3, reason: 'trimmed' }] })],
        isGone: (_partition, offset) => offset === 1,
      },
    ],
    [
      'a gap of another partition',
      'falseGaps',
      {
        offers: offersOf('abc'),
        subscribers: [subscriber(got('abc'), { gaps: [{ partition: 1, from: 1, to: 3, reason: 'trimmed' }] })],
        isGone: (partition) => partition === 0,
      },
    ],
    ['a refused event that landed', 'phantoms', { offers: [offer('a', refused)], subscribers: [subscriber(got('a'))] }],
    ['an event that nobody offered', 'phantoms', { offers: [], subscribers: [subscriber(got('a'))] }],
  ];

  test.each(table)('%s', (_, fault, input) => {
    const ledger = checkLedger(input);
    expect({ ...ledger.details, [fault]: [] }).toEqual({
      lost: [],
      doubled: [],
      outOfOrder: [],
      falseGaps: [],
      phantoms: [],
    });
    expect(ledger[fault]).toBe(1);
    expect(isClean(ledger)).toBe(false);
  });
});

describe('accepts', () => {
  const gone = (_partition: number, offset: number): boolean => offset <= 2;
  const table: readonly (readonly [string, LedgerInput])[] = [
    ['all in order', { offers: offersOf('abc'), subscribers: [subscriber(got('abc'))] }],
    [
      'a true gap',
      {
        offers: offersOf('abcd'),
        subscribers: [subscriber(got('cd'), { gaps: [{ partition: 0, from: 1, to: 2, reason: 'trimmed' }] })],
        isGone: gone,
      },
    ],
    [
      'a true gap told by positions',
      {
        offers: offersOf('abcd'),
        subscribers: [subscriber(got('cd'), { gaps: [{ partition: 0, from: at(1), to: at(2), reason: 'trimmed' }] })],
        isGone: gone,
      },
    ],
    [
      'a new epoch that lost the end of the old one, told',
      {
        offers: [...offersOf('abcd'), offer('x', accepted(at(3, 'e2')))],
        subscribers: [
          subscriber([...got('ab'), { id: 'x', position: at(3, 'e2') }], {
            gaps: [{ partition: 0, from: at(2), to: at(2, 'e2'), reason: 'epoch' }],
          }),
        ],
        isGone: (_partition, offset, epoch) => epoch === 'e1' && offset > 2,
      },
    ],
    [
      'what the log lost, written again in the next epoch',
      {
        offers: [offer('a', accepted(at(5)), accepted(later))],
        subscribers: [
          subscriber([
            { id: 'a', position: at(5) },
            { id: 'a', position: later },
          ]),
        ],
        isGone: (_partition, _offset, epoch) => epoch === 'e1',
      },
    ],
    [
      'a retried event, once',
      { offers: [offer('a', refused, unknown, accepted(at(1)))], subscribers: [subscriber(got('a'))] },
    ],
    [
      'an unknown outcome that reached one of two',
      { offers: [offer('a', unknown)], subscribers: [subscriber(got('a')), subscriber([])] },
    ],
    [
      'what stood before the subscription, missing',
      {
        offers: offersOf('abc'),
        subscribers: [subscriber(got('c'), { subscriptions: [{ room: 'r', position: at(2), at: T0 }] })],
      },
    ],
    [
      'a replay that goes back behind what another room brought',
      {
        offers: [...offersOf('ab'), { ...offer('x', accepted(at(3))), room: 'other' }],
        subscribers: [subscriber([{ id: 'x', position: at(3) }, ...unplaced('ab')])],
      },
    ],
  ];

  test.each(table)('%s', (_, input) => {
    const ledger = checkLedger(input);
    expect(ledger.details).toEqual({ lost: [], doubled: [], outOfOrder: [], falseGaps: [], phantoms: [] });
    expect(isClean(ledger)).toBe(true);
  });
});

test('without a position, what was first offered after the subscription is due', () => {
  const offers = offersOf('a');
  const lostSince = (time: number): number =>
    checkLedger({ offers, subscribers: [subscriber([], { subscriptions: [{ room: 'r', at: time }] })] }).lost;
  expect([lostSince(T0), lostSince(T0 + 1)]).toEqual([1, 0]);
});

test('counts an event once however often it was tried, and the longest refusal', () => {
  const ledger = checkLedger({
    offers: [
      offer('a', refused, refused, accepted(at(1))),
      offer('b', refused),
      offer('b', unknown),
      offer('c', refused),
      offer('d', accepted(at(2))),
    ],
    subscribers: [],
  });
  expect(ledger).toMatchObject({ offered: 4, accepted: 2, refused: 1, unknown: 1, longestRefusalMs: 210 });
  expect(ledger.acceptedShare).toBe(0.5);
});

test('prints one line of JSON, with the details of what it found only', () => {
  const line = printLedger(checkLedger({ offers: offersOf('ab'), subscribers: [subscriber(got('a'))] }));
  expect(line).not.toContain('\n');
  expect(JSON.parse(line)).toMatchObject({
    lost: 1,
    doubled: 0,
    details: { lost: ['s: b at e1:0:1700000000002-2 in r'] },
  });
  expect(JSON.parse(line).details.doubled).toBeUndefined();
});

// ── random histories ────────────────────────────────────────────────────────────────────────────────────────────────

type Fate = 'accepted' | 'retried' | 'refused' | 'landed' | 'vanished';

interface History {
  readonly input: LedgerInput & { readonly subscribers: readonly Subscriber[] };
  readonly gone: ReadonlySet<string>;
  readonly acceptedIds: ReadonlySet<string>;
}

const shape = fc.record({
  partitions: fc.integer({ min: 1, max: 3 }),
  events: fc.array(
    fc.record({
      room: fc.nat(4),
      fate: fc.constantFrom<Fate>('accepted', 'accepted', 'accepted', 'retried', 'refused', 'landed', 'vanished'),
    }),
    { minLength: 1, maxLength: 40 },
  ),
  /** The epoch changes before this event, without a loss. */
  newEpochAt: fc.nat(60),
  /** Of each partition the first so many entries are gone. */
  trimmed: fc.nat(10),
  subscribers: fc.array(
    fc.record({
      rooms: fc.uniqueArray(fc.nat(4), { minLength: 1 }),
      /** How many events there were when it came. */
      cameAt: fc.nat(20),
      /** Was away while the log was trimmed: has a gap for what is gone. */
      isLate: fc.boolean(),
      /** Told no positions, as a replay tells none. */
      isUnplaced: fc.boolean(),
      seesLanded: fc.boolean(),
    }),
    { minLength: 1, maxLength: 4 },
  ),
});

type Shape = typeof shape extends fc.Arbitrary<infer T> ? T : never;

interface Row {
  readonly id: string;
  readonly room: string;
  readonly fate: Fate;
  readonly partition: number;
  readonly offset: number;
  readonly position: string;
}

function historyOf({ partitions, events, newEpochAt, trimmed, subscribers }: Shape): History {
  const tails = Array.from({ length: partitions }, () => 0);
  const rows = events.map(({ room, fate }, index): Row => {
    const partition = room % partitions;
    const hasEntry = fate !== 'refused' && fate !== 'vanished';
    const offset = hasEntry ? (tails[partition] as number) + 1 : 0;
    if (hasEntry) tails[partition] = offset;
    const position = formatPosition(index < newEpochAt ? 'e1' : 'e2', partition, T0 + index, offset);
    return { id: `m${index}`, room: `r${room}`, fate, partition, offset, position };
  });
  const isTrimmed = (row: Row): boolean => row.offset > 0 && row.offset <= trimmed;
  const gone = new Set(rows.filter(isTrimmed).map(({ partition, offset }) => `${partition}:${offset}`));
  const outcomesOf = ({ fate, position }: Row): Outcome[] => {
    if (fate === 'accepted') return [accepted(position)];
    if (fate === 'retried') return [refused, unknown, accepted(position)];
    return fate === 'refused' ? [refused, refused] : [refused, unknown];
  };
  const seenBy = (spec: Shape['subscribers'][number], index: number): Subscriber => {
    const due = rows.filter(
      (row, i) => i >= spec.cameAt && row.offset > 0 && spec.rooms.some((room) => row.room === `r${room}`),
    );
    const missed = spec.isLate ? due.filter(isTrimmed) : [];
    const gaps = [...new Set(missed.map(({ partition }) => partition))].map((partition): ToldGap => {
      return { partition, from: 1, to: Math.min(trimmed, tails[partition] as number), reason: 'trimmed' };
    });
    const deliveries = due
      .filter((row) => !missed.includes(row) && (row.fate !== 'landed' || spec.seesLanded))
      .map(({ id, position }) => ({ id, position: spec.isUnplaced ? undefined : position }));
    const subscriptions = spec.rooms.map((room) => {
      const partition = room % partitions;
      const before = rows.slice(0, spec.cameAt).filter((row) => row.offset > 0 && row.partition === partition);
      const epoch = spec.cameAt <= newEpochAt ? 'e1' : 'e2';
      const base = formatPosition(epoch, partition, T0 + spec.cameAt - 1, before.at(-1)?.offset ?? 0);
      return { room: `r${room}`, position: base, at: T0 };
    });
    return { name: `s${index}`, subscriptions, deliveries, gaps };
  };
  return {
    input: {
      offers: rows.map((row) => ({ ...offer(row.id, ...outcomesOf(row)), room: row.room })),
      subscribers: subscribers.map(seenBy),
      isGone: (partition, offset) => gone.has(`${partition}:${offset}`),
    },
    gone,
    acceptedIds: new Set(rows.filter(({ fate }) => fate === 'accepted' || fate === 'retried').map(({ id }) => id)),
  };
}

/** The history with one fault in one subscriber, or undefined where it has no room for that fault. */
function plant(fault: Fault, { input, gone, acceptedIds }: History, dice: number): LedgerInput | undefined {
  const pick = <T>(from: readonly T[]): T | undefined => from[dice % from.length];
  const roomOf = new Map(input.offers.map(({ id, room }) => [id, room]));
  const variants = input.subscribers.flatMap((victim, index) => {
    const { deliveries } = victim;
    const isAccepted = ({ id }: Delivery): boolean => acceptedIds.has(id);
    const changed = (change: Partial<Subscriber>): LedgerInput => ({
      ...input,
      subscribers: input.subscribers.with(index, { ...victim, ...change }),
    });
    switch (fault) {
      case 'lost':
        // what a gap covers may be missing, so it is no fault
        return deliveries
          .filter((delivery) => isAccepted(delivery) && !isCovered(victim, delivery.id, input))
          .map((dropped) => changed({ deliveries: deliveries.filter((delivery) => delivery !== dropped) }));
      case 'doubled':
        return deliveries.flatMap((again, i) =>
          deliveries.slice(i).map((_, j) => changed({ deliveries: deliveries.toSpliced(i + j + 1, 0, again) })),
        );
      case 'outOfOrder':
        return deliveries.flatMap((first, i) => {
          const j = deliveries.findIndex((other, k) => k > i && roomOf.get(other.id) === roomOf.get(first.id));
          const second = deliveries[j];
          if (!second || !isAccepted(first) || !isAccepted(second)) return [];
          return [changed({ deliveries: deliveries.with(i, second).with(j, first) })];
        });
      case 'falseGaps':
        return [1, 2, 11, 50]
          .filter((offset) => !gone.has(`0:${offset}`))
          .map((offset): ToldGap => ({ partition: 0, from: offset, to: offset, reason: 'trimmed' }))
          .map((gap) => changed({ gaps: [...victim.gaps, gap] }));
      case 'phantoms':
        return input.offers
          .filter(({ attempts }) => attempts.every(({ outcome }) => outcome.kind === 'refused'))
          .map(({ id }) => changed({ deliveries: [...deliveries, { id }] }));
      default:
        return fault satisfies never;
    }
  });
  return pick(variants);
}

function acceptedAt(id: string, input: LedgerInput): string {
  const outcome = input.offers.find((candidate) => candidate.id === id)?.attempts.at(-1)?.outcome;
  return outcome?.kind === 'accepted' ? outcome.position : '';
}

function isCovered({ gaps }: Subscriber, id: string, input: LedgerInput): boolean {
  const position = parsePosition(acceptedAt(id, input));
  return gaps.some(
    ({ partition, from, to }) =>
      partition === position?.partition && position.offset >= Number(from) && position.offset <= Number(to),
  );
}

describe('random histories', () => {
  test('a valid one is clean', () => {
    fc.assert(
      fc.property(shape, (drawn) => {
        expect(checkLedger(historyOf(drawn).input).details).toEqual({
          lost: [],
          doubled: [],
          outOfOrder: [],
          falseGaps: [],
          phantoms: [],
        });
      }),
      { numRuns: 500 },
    );
  });

  test.each<Fault>(['lost', 'doubled', 'outOfOrder', 'falseGaps', 'phantoms'])(
    'one planted fault is found: %s',
    (fault) => {
      fc.assert(
        fc.property(shape, fc.nat(), (drawn, dice) => {
          const faulty = plant(fault, historyOf(drawn), dice);
          fc.pre(faulty !== undefined);
          expect(checkLedger(faulty)[fault]).toBeGreaterThan(0);
        }),
        { numRuns: 300, maxSkipsPerRun: 1000 },
      );
    },
  );
});
