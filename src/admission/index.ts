export { type ApiCaller, ApiKeys } from './api-keys.js';
export { type Identity, type TokenKey, TokenVerifier } from './identity.js';
export { isAllowed, type Permissions } from './permissions.js';
