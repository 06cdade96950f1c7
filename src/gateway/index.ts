export { Gateway, type GatewayOptions } from './gateway.js';
