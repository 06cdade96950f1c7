export { type DevicePresence, Presence, type PresenceOptions, type Visit, type Whereabouts } from './presence.js';
