export type { Inbox, InboxMessage } from './inbox.js';
export { Pods, type PodsOptions } from './pods.js';
export type { HandOver } from './reaper.js';
