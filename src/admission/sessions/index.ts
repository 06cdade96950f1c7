export type { Decision, DeviceOf, Holder } from './device.js';
export { DeviceSessions, type DeviceSessionsOptions } from './sessions.js';
export { DEFAULT_SESSION_SETTINGS, type SessionSettings } from './settings.js';
