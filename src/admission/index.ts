export { type ApiCaller, ApiKeys } from './api-keys.js';
export { Authenticator } from './authenticator.js';
export { DeviceTokens } from './device-tokens.js';
export type * from './directory.js';
export { type Identity, type TokenKey, TokenVerifier } from './identity.js';
export { isAllowed, type Permissions } from './permissions.js';
export { SCOPES, type Scope } from './scopes.js';
export { StoredDirectory } from './stored-directory.js';
export { StoredKeys } from './stored-keys.js';
