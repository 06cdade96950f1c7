export { CallError } from '../core/call-error.js';
export { type ErrorCode, RelayError } from '../core/errors.js';
export type { CallOptions } from './calls.js';
export { Client, createClient, type SubscribeOptions } from './client.js';
export type {
  ClientEvents,
  DevicePresence,
  EventMap,
  Gap,
  Presence,
  PresenceChange,
  RelayEvent,
  Resync,
  Status,
} from './events.js';
export type { ClientOptions } from './options.js';
export type { Published, PublishOptions } from './publish.js';
export type { Handler, IncomingCall, Registration, RegistrationState } from './registration.js';
export { memoryStore, type Store, type WebStorage, webStore } from './stores.js';
export type { Subscription } from './subscription.js';
export type { Token } from './token-source.js';
