import type { Logger } from '../core/ports.js';
import { replyCode } from '../redis/connect.js';

/** Says once that Redis refuses an operation, once per change of the code, and once that it is over. Wire faults are said by whoever watches Redis. */
export class Refusals {
  #code = '';
  #said = '';

  /** @param isPatient one refusal passes by itself (a group is made anew, a master changes): only the second in a row is said */
  constructor(
    private readonly logger: Logger,
    private readonly about: { readonly op: string; readonly partition: number },
    private readonly isPatient = false,
  ) {}

  failed(error: unknown): void {
    const code = replyCode(error);
    if (code === '') return;
    const isRepeated = code === this.#code;
    this.#code = code;
    if (code === this.#said || (this.isPatient && !isRepeated)) return;
    this.#said = code;
    this.logger.warn({ event: 'log_refused', ...this.about, code }, 'Redis refuses what the log needs');
  }

  succeeded(): void {
    this.#code = '';
    if (this.#said === '') return;
    this.#said = '';
    this.logger.info({ event: 'log_accepted', ...this.about }, 'Redis no longer refuses what the log needs');
  }
}
