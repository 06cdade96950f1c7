export { type GroupDescription, LogAccess, type PartitionDescription } from './access.js';
export type { AppendRequest, AppendResult } from './appender.js';
export type { Entry } from './entry.js';
export { EventLog, type EventLogOptions, type Resolution } from './log.js';
export { lossesOf } from './losses.js';
export type { Page } from './page.js';
export type { EpochTurn, LogGap, ReaderHandler } from './reader.js';
