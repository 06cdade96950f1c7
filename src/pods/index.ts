export type { Inbox, InboxMessage } from './inbox.js';
export { LEASE_MS } from './lease.js';
export { Pods, type PodsOptions } from './pods.js';
export type { HandOver } from './reaper.js';
