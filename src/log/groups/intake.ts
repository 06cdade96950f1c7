import type { Connection } from '../../redis/connect.js';
import { parseId } from '../entry.js';
import { GroupEntry } from './group-entry.js';
import type { GroupPlace } from './group-place.js';
import { Holding, type Pending } from './holding.js';
import type { GroupMetrics } from './metrics.js';
import { attachmentsOf, type RawEntry, readEntry, unwrapped } from './raw-entry.js';
import type { Source } from './source.js';

/** What an entry takes in memory beside its text. */
const OVERHEAD_BYTES = 500;

export interface IntakeOptions {
  readonly member: string;
  readonly commands: Connection;
  readonly place: GroupPlace;
  readonly metrics: GroupMetrics;
}

/** Makes what Redis answers into what handlers get; what is nothing for handlers is seen to. */
export class Intake {
  constructor(private readonly options: IntakeOptions) {}

  /**
   * @param deliveriesOf by index
   * @param isCounted the present delivery is among those
   */
  async take(
    source: Source,
    all: readonly RawEntry[],
    deliveriesOf: (index: number) => number,
    isCounted: boolean,
  ): Promise<readonly Holding[]> {
    const holdings: Holding[] = [];
    for (const [index, raw] of all.entries()) {
      const deliveries = deliveriesOf(index);
      const entry = source.isRedriven ? unwrapped(raw) : raw;
      const attachments = attachmentsOf(entry) > 0 ? await this.#attachments(source, raw[0]) : undefined;
      if (attachments && attachments.length !== attachmentsOf(entry)) {
        this.#tellCut(source, raw[0], entry[0], deliveries);
        continue;
      }
      const holding = this.#holdingOf(source, raw[0], entry, deliveries, isCounted, attachments);
      if (holding) holdings.push(holding);
    }
    return holdings;
  }

  #holdingOf(
    source: Source,
    rawId: string,
    raw: RawEntry,
    deliveries: number,
    isCounted: boolean,
    attachments: readonly Buffer[] | undefined,
  ): Holding | undefined {
    const { place } = this.options;
    const text = readEntry(raw, attachments);
    if (typeof text === 'string') {
      const { ms, seq } = parseId(rawId);
      this.#pass({ source, id: rawId, ms, seq, deliveries, hasFailed: !isCounted }, text);
      return undefined;
    }
    const entry = new GroupEntry(text, place.epochOf(text.offset), source.partition, deliveries, source.isRedriven);
    let bytes = OVERHEAD_BYTES + text.header.length + text.payload.length;
    for (const { length } of text.attachments) bytes += length;
    // in the log an entry's own id is also its place
    const { ms, seq } = source.isRedriven ? parseId(rawId) : { ms: text.ms, seq: text.offset };
    return new Holding(source, rawId, ms, seq, deliveries, !isCounted, entry, bytes, isCounted);
  }

  #pass(pending: Pending, why: 'foreign' | 'unknown' | 'other'): void {
    const { metrics, member } = this.options;
    const { source } = pending;
    if (why !== 'unknown') {
      metrics.skipped(why === 'foreign' ? 'foreign' : 'kind');
      return source.acknowledge(pending);
    }
    // a member of a newer version can read it, when it comes back
    metrics.skipped('format');
    const failure = { at: Date.now(), member, reason: 'error', error: 'it is of a newer version' };
    void source.fail(pending, 'error', failure, 0);
  }

  /** It was cut from the log between its text and its bytes. */
  #tellCut(source: Source, rawId: string, id: string, deliveries: number): void {
    const { ms, seq } = parseId(rawId);
    const offset = parseId(id).seq;
    this.options.place.tellTrimmed(1, { from: offset, to: offset });
    source.acknowledge({ source, id: rawId, ms, seq, deliveries, hasFailed: deliveries > 1 });
  }

  /** Bytes, which the text of the answer has not kept. */
  async #attachments(source: Source, id: string): Promise<readonly Buffer[]> {
    const { redis } = this.options.commands;
    const [entry] = (await redis.callBuffer('XRANGE', source.stream, id, id)) as [Buffer, Buffer[]][];
    const fields = entry?.[1].slice(source.isRedriven ? 2 : 0) ?? [];
    return fields.filter((_, index) => index > 2 && index % 2 === 1);
  }
}
