export { type ErrorCode, RelayError } from '../core/errors.js';
export type { BatchHandler, EntryHandler, GroupEntry, GroupGap, GroupStart, HandlerContext } from '../log/index.js';
export { type Appended, createLog, type Log, type LogOptions, type NewEvent } from './create-log.js';
export type { EntriesOptions, Group, GroupOptions, GroupReader, HeldEntry, RunOptions } from './group.js';
