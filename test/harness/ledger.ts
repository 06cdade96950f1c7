import { type Position, parsePosition } from '../../src/wire/position.js';

export type Outcome =
  | { readonly kind: 'accepted'; readonly position: string }
  /** The relay said that it did not happen. */
  | { readonly kind: 'refused' }
  /** No answer, or `mayHaveHappened`. */
  | { readonly kind: 'unknown' };

export interface Attempt {
  readonly outcome: Outcome;
  /** ms since 1970 */
  readonly startedAt: number;
  readonly endedAt: number;
}

/** One event, however often its publisher tried. Its id is unique in the ledger; offers of the same id are joined. */
export interface Offer {
  readonly id: string;
  readonly room: string;
  readonly attempts: readonly Attempt[];
}

export interface Subscription {
  readonly room: string;
  /** What stands above it is due. */
  readonly position?: string | undefined;
  /** Without a position: what was first offered at or after this time is due. ms since 1970. */
  readonly at: number;
}

export interface Delivery {
  readonly id: string;
  readonly position?: string | undefined;
}

/** `holdfast:gap` as it came; both ends are included, as offsets or as positions. */
export interface ToldGap {
  readonly partition: number;
  readonly room?: string;
  readonly from: number | string;
  readonly to: number | string;
  readonly reason: 'trimmed' | 'epoch';
}

export interface Subscriber {
  readonly name: string;
  /** A room named twice counts from its first subscription. */
  readonly subscriptions: readonly Subscription[];
  /** In the order in which they came. */
  readonly deliveries: readonly Delivery[];
  readonly gaps: readonly ToldGap[];
}

export interface LedgerInput {
  readonly offers: readonly Offer[];
  readonly subscribers: readonly Subscriber[];
  /** Is this entry no longer in the log? Default: nothing is gone, and so every gap is false. `epoch` is `''` if unknown. */
  readonly isGone?: (partition: number, offset: number, epoch: string) => boolean;
}

export type Fault = 'lost' | 'doubled' | 'outOfOrder' | 'falseGaps' | 'phantoms';

export interface Ledger {
  readonly offered: number;
  readonly accepted: number;
  /** Every attempt was refused. */
  readonly refused: number;
  /** Never accepted, and an attempt's outcome is unknown. */
  readonly unknown: number;
  /** The longest that an event waited from its first failed attempt to its acceptance, or to its last attempt's end. */
  readonly longestRefusalMs: number;
  /** Accepted, due, in no told gap, and not delivered; counted per subscriber. */
  readonly lost: number;
  /** Delivered again to a subscriber, or accepted at two positions. */
  readonly doubled: number;
  /** Deliveries below an earlier one's position, and entries whose place differs between two who saw them. */
  readonly outOfOrder: number;
  readonly gaps: number;
  readonly falseGaps: number;
  /** Delivered though never offered, or refused for good. */
  readonly phantoms: number;
  readonly acceptedShare: number;
  /** The first few of each fault, as text. */
  readonly details: Readonly<Record<Fault, readonly string[]>>;
}

const MAX_DETAILS = 5;
const MAX_GAP_OFFSETS = 1_000_000;

/** Counts, and keeps the first few. */
class Faults {
  readonly count: Record<Fault, number> = { lost: 0, doubled: 0, outOfOrder: 0, falseGaps: 0, phantoms: 0 };
  readonly details: Record<Fault, string[]> = { lost: [], doubled: [], outOfOrder: [], falseGaps: [], phantoms: [] };

  add(fault: Fault, text: string): void {
    this.count[fault]++;
    if (this.details[fault].length < MAX_DETAILS) this.details[fault].push(text);
  }
}

/** An offer, judged: what its attempts came to. */
interface Entry {
  readonly id: string;
  readonly room: string;
  readonly state: 'accepted' | 'refused' | 'unknown';
  /** Of the acceptance; without one, of its first delivery that had a position. */
  position: Position | undefined;
  readonly firstStartedAt: number;
  readonly refusalMs: number;
}

type IsGone = NonNullable<LedgerInput['isGone']>;

/**
 * Compares what publishers offered with what subscribers got. Pure.
 *
 * @throws for a text that is no position
 */
export function checkLedger({ offers, subscribers, isGone = () => false }: LedgerInput): Ledger {
  const faults = new Faults();
  const entries = new Map<string, Entry>();
  for (const offer of joined(offers)) entries.set(offer.id, judge(offer, isGone, faults));
  placeDelivered(entries, subscribers);

  checkPlaces(entries, subscribers, faults);
  for (const subscriber of subscribers) {
    const got = checkDeliveries(subscriber, entries, isGone, faults);
    checkLosses(subscriber, got, entries, faults);
    for (const gap of subscriber.gaps)
      if (!coversGone(gap, entries, isGone)) faults.add('falseGaps', `${subscriber.name}: ${JSON.stringify(gap)}`);
  }
  checkSameOrder(entries, subscribers, faults);

  const all = [...entries.values()];
  const countOf = (state: Entry['state']): number => all.filter((entry) => entry.state === state).length;
  return {
    offered: all.length,
    accepted: countOf('accepted'),
    refused: countOf('refused'),
    unknown: countOf('unknown'),
    longestRefusalMs: all.reduce((longest, entry) => Math.max(longest, entry.refusalMs), 0),
    gaps: subscribers.reduce((sum, { gaps }) => sum + gaps.length, 0),
    ...faults.count,
    acceptedShare: all.length === 0 ? 1 : countOf('accepted') / all.length,
    details: faults.details,
  };
}

/** No fault of any kind. Refusals, unknown outcomes and true gaps are none. */
export function isClean({ lost, doubled, outOfOrder, falseGaps, phantoms }: Ledger): boolean {
  return lost + doubled + outOfOrder + falseGaps + phantoms === 0;
}

/** One line of JSON; details only of what was found. */
export function printLedger({ details, ...counts }: Ledger): string {
  const found = Object.fromEntries(Object.entries(details).filter(([, texts]) => texts.length > 0));
  return JSON.stringify({ ...counts, ...(Object.keys(found).length > 0 && { details: found }) });
}

function joined(offers: readonly Offer[]): Offer[] {
  const byId = new Map<string, Offer>();
  for (const offer of offers) {
    const known = byId.get(offer.id);
    if (known && known.room !== offer.room) throw new Error(`${offer.id} was offered to two rooms`);
    byId.set(offer.id, known ? { ...known, attempts: [...known.attempts, ...offer.attempts] } : offer);
  }
  return [...byId.values()];
}

function judge({ id, room, attempts }: Offer, isGone: IsGone, faults: Faults): Entry {
  let position: Position | undefined;
  let firstFailedAt: number | undefined;
  let settledAt = 0;
  for (const { outcome, startedAt, endedAt } of attempts) {
    if (outcome.kind === 'accepted') {
      const next = positionOf(outcome.position);
      // what the log has forgotten (an older copy came back) may rightly be written again
      if (position && !samePlace(position, next) && !isGone(position.partition, position.offset, position.epoch))
        faults.add('doubled', `${id}: accepted at ${textOf(position)} and ${outcome.position}`);
      if (!position) settledAt = endedAt;
      position = next;
    } else if (!position) {
      firstFailedAt ??= startedAt;
      settledAt = endedAt;
    }
  }
  const isUnknown = attempts.some(({ outcome }) => outcome.kind === 'unknown');
  return {
    id,
    room,
    state: position ? 'accepted' : isUnknown ? 'unknown' : 'refused',
    position,
    firstStartedAt: attempts[0]?.startedAt ?? 0,
    refusalMs: firstFailedAt === undefined ? 0 : settledAt - firstFailedAt,
  };
}

/** Unknown outcomes that landed after all: their place is what a subscriber saw. */
function placeDelivered(entries: ReadonlyMap<string, Entry>, subscribers: readonly Subscriber[]): void {
  for (const { deliveries } of subscribers)
    for (const { id, position } of deliveries) {
      const entry = entries.get(id);
      if (entry && !entry.position && position !== undefined) entry.position = positionOf(position);
    }
}

/** One id has one place per epoch, one place one id: whoever says it. */
function checkPlaces(entries: ReadonlyMap<string, Entry>, subscribers: readonly Subscriber[], faults: Faults): void {
  const idAt = new Map<string, string>();
  const offsetOf = new Map<string, number>();
  const claim = (who: string, id: string, { epoch, partition, offset }: Position): void => {
    const place = `${epoch}:${partition}:${offset}`;
    const otherId = idAt.get(place) ?? id;
    const otherOffset = offsetOf.get(`${epoch} ${id}`) ?? offset;
    idAt.set(place, otherId);
    offsetOf.set(`${epoch} ${id}`, otherOffset);
    if (otherId !== id) faults.add('outOfOrder', `${who}: ${id} at ${place}, where ${otherId} stands`);
    else if (otherOffset !== offset) faults.add('outOfOrder', `${who}: ${id} at ${place}, elsewhere at ${otherOffset}`);
  };
  for (const { id, state, position } of entries.values())
    if (state === 'accepted' && position) claim('publisher', id, position);
  for (const { name, deliveries } of subscribers)
    for (const { id, position } of deliveries) if (position !== undefined) claim(name, id, positionOf(position));
}

/** Doubles, order and phantoms of one subscriber; returns the ids that it got. */
function checkDeliveries(
  { name, deliveries }: Subscriber,
  entries: ReadonlyMap<string, Entry>,
  isGone: IsGone,
  faults: Faults,
): Set<string> {
  const got = new Map<string, Position | undefined>();
  // a replay (`subscribe.from`) goes back in the partition, but never within its room
  const newestOfPartition = new Map<number, Position>();
  const newestOfRoom = new Map<string, Position>();
  for (const delivery of deliveries) {
    const { id } = delivery;
    const entry = entries.get(id);
    if (!entry || entry.state === 'refused') {
      faults.add('phantoms', `${name}: ${id} ${entry ? 'was refused' : 'was never offered'}`);
      continue;
    }
    const own = delivery.position === undefined ? undefined : positionOf(delivery.position);
    const before = got.get(id);
    if (got.has(id) && !isWrittenAgain(before, own, isGone)) {
      faults.add('doubled', `${name}: ${id} at ${delivery.position ?? 'no position'}`);
      continue;
    }
    const place = own ?? entry.position;
    got.set(id, place);
    const newest = [own && newestOfPartition.get(own.partition), place && newestOfRoom.get(entry.room)];
    const overtaken = newest.find((other) => other && place && isAtOrBelow(place, other));
    if (overtaken) {
      faults.add('outOfOrder', `${name}: ${id} at ${textOf(place as Position)} after ${textOf(overtaken)}`);
      continue;
    }
    if (own) newestOfPartition.set(own.partition, own);
    if (place) newestOfRoom.set(entry.room, place);
  }
  return new Set(got.keys());
}

/** Within an epoch offsets are the order; over its end only Redis's time is left, which both entries have from one clock. */
function isAtOrBelow(place: Position, other: Position): boolean {
  return place.epoch === other.epoch ? place.offset <= other.offset : place.ms < other.ms;
}

/** After a failover the log may hold an id again that it had lost: in a new epoch, the old entry gone. */
function isWrittenAgain(before: Position | undefined, now: Position | undefined, isGone: IsGone): boolean {
  if (!before || !now || before.epoch === now.epoch) return false;
  return isGone(before.partition, before.offset, before.epoch);
}

function checkLosses(
  { name, subscriptions, gaps }: Subscriber,
  got: ReadonlySet<string>,
  entries: ReadonlyMap<string, Entry>,
  faults: Faults,
): void {
  const firstOf = new Map<string, Subscription>();
  for (const subscription of subscriptions)
    if (!firstOf.has(subscription.room)) firstOf.set(subscription.room, subscription);
  for (const entry of entries.values()) {
    const { id, room, state, position } = entry;
    const subscription = firstOf.get(room);
    if (state !== 'accepted' || !position || !subscription || got.has(id)) continue;
    if (isDue(entry, position, subscription) && !gaps.some((gap) => covers(gap, position, room)))
      faults.add('lost', `${name}: ${id} at ${textOf(position)} in ${room}`);
  }
}

function isDue(entry: Entry, position: Position, subscription: Subscription): boolean {
  if (subscription.position === undefined) return entry.firstStartedAt >= subscription.at;
  const since = positionOf(subscription.position);
  // epochs have no order of their own, but Redis's time goes on
  return since.epoch === position.epoch && since.partition === position.partition
    ? position.offset > since.offset
    : position.ms > since.ms;
}

interface End {
  readonly epoch: string | undefined;
  readonly offset: number;
}

function endOf(end: number | string): End {
  return typeof end === 'number' ? { epoch: undefined, offset: end } : positionOf(end);
}

function covers(gap: ToldGap, { epoch, partition, offset }: Position, room: string): boolean {
  if (partition !== gap.partition || (gap.room !== undefined && gap.room !== room)) return false;
  const [from, to] = [endOf(gap.from), endOf(gap.to)];
  if (gap.reason === 'epoch') {
    // it runs from a place in an epoch that ended to one in the epoch that followed
    if (epoch === from.epoch && epoch !== to.epoch) return offset >= from.offset;
    if (epoch === to.epoch && epoch !== from.epoch) return offset <= to.offset;
  }
  const isOfOther = [from, to].some((end) => end.epoch !== undefined && end.epoch !== epoch);
  return !isOfOther && offset >= from.offset && offset <= to.offset;
}

function coversGone(gap: ToldGap, entries: ReadonlyMap<string, Entry>, isGone: IsGone): boolean {
  const otherRooms = new Set<string>();
  for (const { position, room } of entries.values()) {
    if (!position) continue;
    const { epoch, partition, offset } = position;
    if (covers(gap, position, room) && isGone(partition, offset, epoch)) return true;
    if (gap.room !== undefined && gap.room !== room) otherRooms.add(`${partition}:${offset}`);
  }
  // entries that this ledger knows nothing of
  const [from, to] = [endOf(gap.from), endOf(gap.to)];
  const last = Math.min(to.offset, from.offset + MAX_GAP_OFFSETS);
  for (let offset = from.offset; offset <= last; offset++)
    if (!otherRooms.has(`${gap.partition}:${offset}`) && isGone(gap.partition, offset, from.epoch ?? '')) return true;
  return false;
}

/**
 * Where nobody told a position, two subscribers of a room can still differ: each one's order gives edges from entry to
 * next entry, and only orders that agree leave a graph without a circle.
 */
function checkSameOrder(entries: ReadonlyMap<string, Entry>, subscribers: readonly Subscriber[], faults: Faults): void {
  const rooms = new Map<string, string[][]>();
  for (const { deliveries } of subscribers) {
    const ofRoom = new Map<string, Set<string>>();
    for (const { id } of deliveries) {
      const room = entries.get(id)?.room;
      if (room !== undefined) ofRoom.set(room, (ofRoom.get(room) ?? new Set()).add(id));
    }
    for (const [room, ids] of ofRoom) rooms.set(room, [...(rooms.get(room) ?? []), [...ids]]);
  }
  for (const [room, orders] of rooms) {
    const placed = orders.map((ids) => ids.filter((id) => entries.get(id)?.position === undefined));
    if (placed.every((ids) => ids.length === 0)) continue; // positions have said all
    const circle = circleOf(orders);
    if (circle.length > 0)
      faults.add('outOfOrder', `subscribers of ${room} differ about ${circle.slice(0, MAX_DETAILS).join(', ')}`);
  }
}

/** What is left when entries without a predecessor are taken away again and again. */
function circleOf(orders: readonly (readonly string[])[]): string[] {
  const followers = new Map<string, string[]>();
  const before = new Map<string, number>();
  for (const ids of orders)
    for (const [index, id] of ids.entries()) {
      if (!before.has(id)) before.set(id, 0);
      const next = ids[index + 1];
      if (next === undefined) continue;
      followers.set(id, [...(followers.get(id) ?? []), next]);
      before.set(next, (before.get(next) ?? 0) + 1);
    }
  const free = [...before].filter(([, count]) => count === 0).map(([id]) => id);
  for (const id of free)
    for (const next of followers.get(id) ?? []) {
      const count = (before.get(next) ?? 0) - 1;
      before.set(next, count);
      if (count === 0) free.push(next);
    }
  return [...before].filter(([, count]) => count > 0).map(([id]) => id);
}

function positionOf(text: string): Position {
  const position = parsePosition(text);
  if (!position) throw new Error(`no position: ${JSON.stringify(text)}`);
  return position;
}

function samePlace(a: Position, b: Position): boolean {
  return a.epoch === b.epoch && a.partition === b.partition && a.offset === b.offset;
}

function textOf({ epoch, partition, ms, offset }: Position): string {
  return `${epoch}:${partition}:${ms}-${offset}`;
}
