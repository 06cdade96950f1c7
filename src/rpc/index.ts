export { type CallRequest, readCall, readName } from './call-request.js';
export type { Daemon, DaemonAnswer, DaemonRequest, Dedupe } from './daemon.js';
export { type Failure, failureOf, type Outcome } from './outcome.js';
export type { KeptRegistration } from './registrations.js';
export { type MethodState, Rpc, type RpcOptions } from './rpc.js';
export { RPC_COMMANDS, type RpcCommand, type RpcParty, RpcSocket, separateAcks } from './rpc-socket.js';
export { DEFAULT_SETTINGS, type RpcSettings } from './settings.js';
