import { ERROR_CODES } from '../core/errors.js';
import type { Counter, Histogram, Meter } from '../core/ports.js';

/** Why a connection ended, as far as it can be told. */
const DISCONNECTS = [
  'client',
  'transport',
  'ping_timeout',
  'draining',
  'expired',
  'slow_consumer',
  'replaced',
  'session_replaced',
  'tenant_inactive',
  'revoked',
  'other',
] as const;
export type DisconnectCode = (typeof DISCONNECTS)[number];

/** What the gateway counts. */
export interface GatewayMetrics {
  readonly accepted: Counter;
  readonly refused: Counter;
  readonly disconnects: Counter;
  readonly delivered: Counter;
  readonly ephemeral: Counter;
  readonly recoveries: Counter;
  readonly recoveredEvents: Histogram;
  readonly gaps: Counter;
  readonly fellBehind: Counter;
  readonly slowClosed: Counter;
  readonly commands: Counter;
  readonly records: Counter;
  readonly held: Counter;
}

export function gatewayMetrics(meter: Meter): GatewayMetrics {
  const codes = ['ok', ...Object.keys(ERROR_CODES)];
  return {
    accepted: meter.counter({ name: 'connections_accepted_total', help: 'Sockets that were admitted.' }),
    refused: meter.counter({
      name: 'connections_refused_total',
      help: 'Handshakes that were refused.',
      labels: {
        reason: [
          'unauthorized',
          'token_expired',
          'bad_request',
          'origin',
          'polling',
          'tenant_inactive',
          'unavailable',
          'session_settle',
          'flap',
          'reconnect',
          'aborted',
          'other',
        ],
      },
    }),
    disconnects: meter.counter({
      name: 'disconnects_total',
      help: 'Sockets that ended.',
      labels: { code: DISCONNECTS },
    }),
    delivered: meter.counter({
      name: 'log_entries_delivered_total',
      help: 'Deliveries of entries to sockets.',
      labels: { path: ['live', 'ring', 'log'] },
    }),
    ephemeral: meter.counter({
      name: 'ephemeral_events_total',
      help: 'Ephemeral events published here, and deliveries of them to sockets.',
      labels: { kind: ['published', 'delivered'] },
    }),
    recoveries: meter.counter({
      name: 'recovery_total',
      help: 'Resumed positions, by where the missing entries were.',
      labels: { result: ['ring', 'log', 'gap'] },
    }),
    recoveredEvents: meter.histogram({
      name: 'recovered_events',
      help: 'Entries that a resumed socket had missed and was given.',
      buckets: [0, 1, 10, 100, 1000, 10_000],
    }),
    gaps: meter.counter({
      name: 'gaps_told_total',
      help: 'Gaps that sockets were told of.',
      labels: { reason: ['trimmed', 'epoch'] },
    }),
    fellBehind: meter.counter({
      name: 'slow_consumers_behind_total',
      help: 'Times that a socket fell behind because it reads slowly.',
    }),
    slowClosed: meter.counter({ name: 'slow_consumers_closed_total', help: 'Sockets closed because nothing drained.' }),
    commands: meter.counter({
      name: 'client_commands_total',
      help: 'What clients asked, by outcome.',
      labels: {
        command: [
          'subscribe',
          'unsubscribe',
          'publish',
          'auth-refresh',
          'rpc-register',
          'rpc-unregister',
          'rpc-call',
          'rpc-attach',
          'rpc-cancel',
          'presence-get',
          'http-publish',
          'http-history',
          'http-rpc',
          'http-rpc-methods',
          'http-presence',
          'http-sessions',
          'http-admin',
        ],
        code: codes,
      },
    }),
    records: meter.counter({
      name: 'resume_records_total',
      help: 'Resume records saved; failed = Redis could not take them and they are tried again.',
      labels: { outcome: ['saved', 'failed', 'lost'] },
    }),
    held: meter.counter({
      name: 'handshakes_held_total',
      help: 'Returning clients held while Redis could not answer.',
    }),
  };
}
