export { loadConfig, type RelayConfig } from './config.js';
export { type ErrorCode, RelayError } from './core/errors.js';
