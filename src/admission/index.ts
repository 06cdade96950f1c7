export { type ApiCaller, ApiKeys } from './api-keys.js';
export { hasDuplicateClaims, type Identity, type TokenKey, TokenVerifier } from './identity.js';
export { isAllowed, matches, type Permissions, parsePermissions } from './permissions.js';
