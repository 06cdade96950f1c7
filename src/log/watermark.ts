/**
 * The newest entry of one partition that this process read or had acknowledged. If the log stands behind it, acknowledged
 * entries have vanished. It never holds an entry of an older epoch.
 */
export class Watermark {
  epoch = '';
  ms = 0;
  offset = 0;

  see(epoch: string, ms: number, offset: number): void {
    if (epoch === this.epoch && offset <= this.offset) return;
    this.epoch = epoch;
    this.ms = ms;
    this.offset = offset;
  }

  begin(epoch: string): void {
    this.epoch = epoch;
    this.ms = 0;
    this.offset = 0;
  }
}
