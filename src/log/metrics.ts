import type { Counter, Meter } from '../core/ports.js';

/** What the log counts. */
export interface LogMetrics {
  readonly published: Counter;
  readonly refused: Counter;
  readonly redisErrors: Counter;
  readonly reads: Counter;
  readonly foreign: Counter;
  readonly handlerErrors: Counter;
  readonly seats: Counter;
  readonly gaps: Counter;
  readonly lostEntries: Counter;
  readonly epochs: Counter;
  readonly kicks: Counter;
  readonly trimmedUnread: Counter;
  readonly reapedGroups: Counter;
}

export function logMetrics(meter: Meter): LogMetrics {
  return {
    published: meter.counter({ name: 'log_entries_published_total', help: 'Entries that this pod appended.' }),
    refused: meter.counter({
      name: 'log_appends_refused_total',
      help: 'Appends that failed; unknown = they may have happened, internal = Redis is set up wrongly.',
      labels: { outcome: ['unavailable', 'unknown', 'internal'] },
    }),
    redisErrors: meter.counter({
      name: 'redis_errors_total',
      help: 'Redis commands of the log that failed, wire faults among them.',
      labels: { op: ['append', 'read', 'sync', 'seat', 'trim'] },
    }),
    reads: meter.counter({
      name: 'log_reads_total',
      help: 'Entries that this pod read, by the read that brought them.',
      labels: { mode: ['group', 'plain'] },
    }),
    foreign: meter.counter({
      name: 'log_entries_skipped_total',
      help: 'Entries that were skipped: a stranger wrote them, or a newer version of Holdfast.',
      labels: { reason: ['foreign', 'format'] },
    }),
    handlerErrors: meter.counter({ name: 'log_dispatch_errors_total', help: 'Entries whose dispatch threw.' }),
    seats: meter.counter({
      name: 'log_group_seats_total',
      help: 'Times that the group was set to where the pod stands.',
    }),
    gaps: meter.counter({
      name: 'log_gaps_total',
      help: 'Gaps met by this pod while reading.',
      labels: { reason: ['trimmed', 'epoch'] },
    }),
    lostEntries: meter.counter({ name: 'log_entries_lost_total', help: 'Entries inside those gaps.' }),
    epochs: meter.counter({
      name: 'log_epochs_total',
      help: 'New epochs seen, by reason.',
      labels: { reason: ['new', 'deleted', 'meta', 'behind', 'forked'] },
    }),
    kicks: meter.counter({
      name: 'log_reader_kicks_total',
      help: 'Read connections dropped because nothing came through.',
    }),
    trimmedUnread: meter.counter({
      name: 'log_trimmed_unread_total',
      help: 'Entries that reaped groups had not read.',
    }),
    reapedGroups: meter.counter({
      name: 'log_groups_reaped_total',
      help: 'Groups of silent pods that this pod removed.',
    }),
  };
}
