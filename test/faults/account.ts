import { formatPosition, parsePosition } from '../../src/wire/position.js';
import type { Client } from '../harness/client.js';
import { checkLedger, type Ledger, type Offer, type Subscriber, type ToldGap } from '../harness/ledger.js';

/** An entry of the log as it stands at the end. */
export interface Standing {
  readonly id: string;
  readonly ms: number;
  /** Scoped by tenant. */
  readonly rooms: readonly string[];
}

/** Offset → entry. */
export type Log = ReadonlyMap<number, Standing>;

/** What publishers were told, what the log holds and what clients got come to. */
export interface Account {
  readonly ledger: Ledger;
  /** `client: id` of what stands in the log, is of the client's room and did not reach it, told gap or not. */
  readonly withheld: readonly string[];
  /** Ids that stand in the log twice. */
  readonly twice: readonly string[];
  /** Accepted, gone, and not delivered, for each client. A gap must name these, and the operator's count must hold them. */
  readonly lostPerClient: readonly number[];
}

/** All clients' subscriptions came before the first offer, so everything of their rooms is due. */
export function accountOf(log: Log, offers: readonly Offer[], clients: readonly Client[]): Account {
  const ids = [...log.values()].map(({ id }) => id);
  return {
    ledger: checkLedger(byBranch(log, offers, clients)),
    withheld: withheldFrom(clients, log),
    twice: ids.filter((id, index) => ids.indexOf(id) !== index),
    lostPerClient: clients.map((client) => lostOf(client, offers, new Set(ids))),
  };
}

export function withheldFrom(clients: readonly Client[], log: Log): readonly string[] {
  return clients.flatMap(({ received, subscriptions }, n) => {
    const got = new Set(received.map(({ meta }) => meta.id));
    const rooms = new Set(subscriptions.map(({ room }) => `default/${room}`));
    return [...log.values()]
      .filter((entry) => entry.rooms.some((room) => rooms.has(room)) && !got.has(entry.id))
      .map(({ id }) => `client-${n}: ${id}`);
  });
}

function lostOf({ received, subscriptions }: Client, offers: readonly Offer[], standing: ReadonlySet<string>): number {
  const got = new Set(received.map(({ meta }) => meta.id));
  const rooms = new Set(subscriptions.map(({ room }) => room));
  const lost = offers.filter(
    ({ id, room, attempts }) =>
      rooms.has(room) &&
      !standing.has(id) &&
      !got.has(id) &&
      attempts.some(({ outcome }) => outcome.kind === 'accepted'),
  );
  return new Set(lost.map(({ id }) => id)).size;
}

/**
 * For the ledger: what is gone is told apart from what stands. After a fall-back an epoch's offsets may stand for two entries,
 * one in the branch that was forgotten and one in the branch that grew before anybody noticed.
 *
 * A gap of reason `epoch` names everything that is gone from its beginning on: its end is only the newest entry that the pod
 * knew of, and another pod may have had newer ones acknowledged.
 */
function byBranch(log: Log, offers: readonly Offer[], clients: readonly Client[]) {
  const isGonePlace = new Set<string>();
  const placeOf = (id: string, text: string): string => {
    const at = parsePosition(text);
    const standing = at && log.get(at.offset);
    if (!at || (standing?.id === id && standing.ms === at.ms)) return text;
    isGonePlace.add(`${goneEpoch(at.epoch)}:${at.offset}`);
    return formatPosition(goneEpoch(at.epoch), at.partition, at.ms, at.offset);
  };
  const placed = offers.map(({ id, room, attempts }) => ({
    id,
    room,
    attempts: attempts.map((attempt) => {
      const { outcome } = attempt;
      if (outcome.kind !== 'accepted') return attempt;
      return { ...attempt, outcome: { ...outcome, position: placeOf(id, outcome.position) } };
    }),
  }));
  const subscribers = clients.map((client, n): Subscriber => {
    const told = client.account(`client-${n}`);
    return {
      ...told,
      deliveries: told.deliveries.map(({ id, position }) => ({ id, position: position && placeOf(id, position) })),
      gaps: told.gaps.map(ofGone),
    };
  });
  const isGone = (_partition: number, offset: number, epoch: string): boolean =>
    isGonePlace.has(`${epoch}:${offset}`) || !log.has(offset);
  return { offers: placed, subscribers, isGone };
}

function goneEpoch(epoch: string): string {
  return `${epoch}-gone`;
}

function ofGone(gap: ToldGap): ToldGap {
  const renamed = (end: number | string): number | string => {
    const at = parsePosition(end);
    return at ? formatPosition(goneEpoch(at.epoch), at.partition, at.ms, at.offset) : end;
  };
  const to = gap.reason === 'epoch' ? formatPosition('after', gap.partition, 0, 0) : renamed(gap.to);
  return { ...gap, from: renamed(gap.from), to };
}
