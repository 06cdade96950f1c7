import type { Meter } from '../../core/ports.js';

type HandledOutcome = 'ok' | 'error' | 'timeout' | 'late';

/** What the member knows of one partition, as of its last look. */
export interface PartitionProgress {
  readonly lag: number | undefined;
  readonly pending: number | undefined;
  readonly oldestPendingSeconds: number | undefined;
}

/** What gauges ask a member for. */
export interface MemberGauges {
  readonly partitions: readonly PartitionProgress[];
  readonly inHand: number;
  /** Partitions that it reads. */
  readonly reads: number;
}

/** What the members of a group count that run in one process. The label is the group's name: there are as many as the code names. */
export interface GroupMetrics {
  /** @returns to be called when the member ends: gauges of who has gone are absent */
  join(read: () => MemberGauges): () => void;
  handled(outcome: HandledOutcome, entries: number): void;
  acknowledged(entries: number): void;
  /** An acknowledgement that came to nothing. */
  lost(fate: 'taken' | 'gone' | 'trimmed'): void;
  redelivered(): void;
  takenOver(entries: number): void;
  deadLettered(reason: 'error' | 'timeout' | 'lost', entries?: number): void;
  missing(reason: 'trimmed' | 'epoch' | 'group', entries: number): void;
  skipped(reason: 'foreign' | 'format' | 'kind'): void;
  failedCommand(op: 'read' | 'beat' | 'take' | 'progress' | 'lease'): void;
}

export function groupMetrics(meter: Meter, group: string): GroupMetrics {
  const members = new Set<() => MemberGauges>();
  const groups = [group];
  const handled = meter.counter({
    name: 'group_entries_handled_total',
    help: 'Entries by what came of their handlers; late = a handler that returned after its time.',
    labels: { group: groups, outcome: ['ok', 'error', 'timeout', 'late'] },
  });
  const acknowledged = meter.counter({
    name: 'group_acknowledged_total',
    help: 'Entries that this member acknowledged.',
    labels: { group: groups },
  });
  const lost = meter.counter({
    name: 'group_lost_total',
    help: 'Entries that were no longer this member’s when it was done: taken by another, acknowledged or reset, trimmed.',
    labels: { group: groups, reason: ['taken', 'gone', 'trimmed'] },
  });
  const redelivered = meter.counter({
    name: 'group_redelivered_total',
    help: 'Deliveries that were not the first.',
    labels: { group: groups },
  });
  const takenOver = meter.counter({
    name: 'group_taken_over_total',
    help: 'Entries taken over from members that died or left.',
    labels: { group: groups },
  });
  const dead = meter.counter({
    name: 'group_dead_letters_total',
    help: 'Entries that became dead letters; lost = their members died with them.',
    labels: { group: groups, reason: ['error', 'timeout', 'lost'] },
  });
  const missing = meter.counter({
    name: 'group_missing_total',
    help: 'Entries that the group was never handed, or may be handed again (group).',
    labels: { group: groups, reason: ['trimmed', 'epoch', 'group'] },
  });
  const skipped = meter.counter({
    name: 'group_skipped_total',
    help: 'Entries that no handler gets: a stranger’s, of a newer version (a dead letter), no event.',
    labels: { group: groups, reason: ['foreign', 'format', 'kind'] },
  });
  const errors = meter.counter({
    name: 'group_redis_errors_total',
    help: 'Commands of this member that failed.',
    labels: { group: groups, op: ['read', 'beat', 'take', 'progress', 'lease'] },
  });
  // what is the group's, each member knows: they are not added up
  const ofGroup = (name: keyof PartitionProgress): number | undefined => {
    const [read] = members;
    const known = (read?.().partitions ?? [])
      .map((partition) => partition[name])
      .filter((value) => value !== undefined);
    if (known.length === 0) return undefined;
    return name === 'oldestPendingSeconds' ? Math.max(...known) : known.reduce((all, one) => all + one, 0);
  };
  const ofMembers = (name: 'inHand' | 'reads'): number | undefined =>
    members.size === 0 ? undefined : [...members].reduce((all, read) => all + read()[name], 0);
  const gauge = (name: string, help: string, value: () => number | undefined): void =>
    meter.gauge({ name, help, labels: { group: groups } }, () => {
      const now = value();
      return now === undefined ? undefined : [[{ group }, now]];
    });
  gauge('group_lag_entries', 'Entries in the log that no member of the group has read.', () => ofGroup('lag'));
  gauge('group_pending_entries', 'Entries that members have read and not acknowledged.', () => ofGroup('pending'));
  gauge('group_oldest_pending_seconds', 'Age of the oldest of those.', () => ofGroup('oldestPendingSeconds'));
  gauge('group_in_hand_entries', 'Entries that members in this process hold.', () => ofMembers('inHand'));
  gauge('group_partitions', 'Partitions that members in this process read.', () => ofMembers('reads'));
  const labels = { group };
  return {
    join: (read) => {
      members.add(read);
      return () => members.delete(read);
    },
    handled: (outcome, entries) => handled.inc({ group, outcome }, entries),
    acknowledged: (entries) => acknowledged.inc(labels, entries),
    lost: (reason) => lost.inc({ group, reason }),
    redelivered: () => redelivered.inc(labels),
    takenOver: (entries) => takenOver.inc(labels, entries),
    deadLettered: (reason, entries = 1) => dead.inc({ group, reason }, entries),
    missing: (reason, entries) => missing.inc({ group, reason }, entries),
    skipped: (reason) => skipped.inc({ group, reason }),
    failedCommand: (op) => errors.inc({ group, op }),
  };
}
