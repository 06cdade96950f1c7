export { LogAccess, type PartitionDescription } from './access.js';
export type { AppendRequest, AppendResult } from './appender.js';
export type { Entry } from './entry.js';
export { GroupAdmin, type GroupSummary, type Reset } from './groups/admin.js';
export type { DeadLetter } from './groups/dead-letter-queue.js';
export type { Garbage } from './groups/garbage.js';
export { GiveBack } from './groups/give-back.js';
export { GroupEntry } from './groups/group-entry.js';
export { GroupMember, type GroupMemberOptions } from './groups/member.js';
export type { MemberDescription } from './groups/members.js';
export { type GroupMetrics, groupMetrics } from './groups/metrics.js';
export type { ResetRow, ResetTarget } from './groups/reset.js';
export {
  type BatchHandler,
  type EntryHandler,
  type GroupGap,
  type GroupSettings,
  type GroupStart,
  groupSettings,
  type HandlerContext,
} from './groups/settings.js';
export type { GroupDescription } from './groups/survey.js';
export { EventLog, type EventLogOptions, type Resolution } from './log.js';
export { lossesOf } from './losses.js';
export type { Page } from './page.js';
export { partitionOf } from './partition-of.js';
export type { EpochTurn, LogGap, ReaderHandler } from './reader.js';
export { planTrim, type TrimRow, trimPartition } from './trim-to.js';
