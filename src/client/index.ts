export { type ErrorCode, RelayError } from '../core/errors.js';
export { Client, createClient, type SubscribeOptions } from './client.js';
export type { ClientEvents, EventMap, Gap, RelayEvent, Resync, Status } from './events.js';
export type { ClientOptions } from './options.js';
export type { Published, PublishOptions } from './publish.js';
export { memoryStore, type Store, type WebStorage, webStore } from './stores.js';
export type { Subscription } from './subscription.js';
export type { Token } from './token-source.js';
