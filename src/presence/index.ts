export { type DevicePresence, type Leave, Presence, type PresenceOptions, type Whereabouts } from './presence.js';
