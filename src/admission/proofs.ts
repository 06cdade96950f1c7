/** So long a proof stands without being asked for again, at most: should a notice of its end ever be lost. */
const KEPT_MS = 10_000;
const MAX_PROOFS = 10_000;

interface Kept<Proof> {
  readonly proof: Proof;
  readonly subject: string;
  readonly until: number;
}

export interface ProofsOptions {
  /** Notices of changes arrive: what was proved is known to be still so. */
  readonly isFresh: () => boolean;
  readonly now?: () => number;
}

/**
 * What secrets proved lately, by their hashes, for as long as notices are heard: a client that comes back costs no look-up.
 * Only what was confirmed is kept. A subject, which notices name, has one secret at a time.
 */
export class Proofs<Proof> {
  readonly #kept = new Map<string, Kept<Proof>>();
  readonly #hashes = new Map<string, string>();
  readonly #isFresh: () => boolean;
  readonly #now: () => number;
  #changes = 0;

  constructor({ isFresh, now = () => performance.now() }: ProofsOptions) {
    this.#isFresh = isFresh;
    this.#now = now;
  }

  /** To be taken before a look-up: its answer is kept only if nothing was forgotten since. */
  get asOf(): number {
    return this.#changes;
  }

  get(hash: string): Proof | undefined {
    if (!this.#isFresh()) this.forgetAll();
    const kept = this.#kept.get(hash);
    return kept && this.#now() < kept.until ? kept.proof : undefined;
  }

  keep(asOf: number, hash: string, { subject, proof }: { subject: string; proof: Proof }, forMs = KEPT_MS): void {
    if (asOf !== this.#changes || !this.#isFresh()) return;
    this.#drop(subject);
    this.#kept.set(hash, { subject, proof, until: this.#now() + Math.min(forMs, KEPT_MS) });
    this.#hashes.set(subject, hash);
    const oldest = this.#kept.values().next().value;
    if (this.#kept.size > MAX_PROOFS && oldest) this.#drop(oldest.subject);
  }

  /** A notice named it. */
  forget(subject: string): void {
    this.#changes++;
    this.#drop(subject);
  }

  /** Notices were lost. */
  forgetAll(): void {
    this.#changes++;
    this.#kept.clear();
    this.#hashes.clear();
  }

  #drop(subject: string): void {
    const hash = this.#hashes.get(subject);
    if (hash === undefined) return;
    this.#hashes.delete(subject);
    this.#kept.delete(hash);
  }
}
