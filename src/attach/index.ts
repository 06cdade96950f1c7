export { CallError } from '../core/call-error.js';
export { RelayError } from '../core/errors.js';
export type { MethodState } from '../rpc/index.js';
export { type AttachedRpc, type AttachRpcOptions, attachRpc, type RpcIdentity } from './attach-rpc.js';
export { type CallOptions, createRpcClient, type RpcClient, type RpcClientOptions } from './rpc-client.js';
export type { RpcProcessOptions } from './rpc-process.js';
export {
  createRpcWorker,
  type IncomingCall,
  type RpcWorker,
  type RpcWorkerOptions,
  type WorkerHandler,
} from './rpc-worker.js';
