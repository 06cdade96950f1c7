export { Gateway, type GatewayOptions } from './gateway.js';
export { parseFrom } from './history.js';
