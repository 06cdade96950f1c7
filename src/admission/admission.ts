import { RelayError } from '../core/errors.js';
import type { Logger, Meter } from '../core/ports.js';
import { Service } from '../core/service.js';
import { sleep, within } from '../core/sleep.js';
import type { Database } from '../postgres/database.js';
import { escapePart } from '../wire/names.js';
import { Lookup } from './lookup.js';
import { type AdmissionMetrics, admissionMetrics } from './metrics.js';
import { type Notice, Notices } from './notices.js';
import {
  FACTS_STATEMENT,
  FACTS_WIDTH,
  type Facts,
  judge,
  keyOf,
  parseFacts,
  type Subject,
  UNKNOWN,
  type Verdict,
} from './verdict.js';

/** A write needs a confirmed verdict no older than this. */
const WRITE_FENCE_MS = 30_000;
const MAX_FENCED = 10_000;
/** Open sockets that are checked in one go. */
const SLICE = 500;
/** While Postgres doesn't answer, somebody asks that often whether it does again. */
const PROBE_MS = 500;

export interface AdmissionOptions {
  /** None: everybody who is proven is active. */
  readonly database: Database | undefined;
  /** Whoever is proven and whose status is not known is let in. */
  readonly isOpen: boolean;
  readonly isStrict: boolean;
  readonly revalidateMs: number;
  /** Changes of keys and devices, for whoever keeps something of them. */
  readonly onNotice?: (notice: Notice) => void;
  /** Changes may have been missed: what is kept of them holds no longer. */
  readonly onUnheard?: () => void;
  readonly logger: Logger;
  readonly meter: Meter;
}

/** At the door nobody has such an id. */
const IMPOSSIBLE: Verdict = { is: 'inactive', code: 'unauthorized', reason: 'no such id can exist' };

type Inactive = Extract<Verdict, { is: 'inactive' }>;

/** Somebody with a connection: known to admission from before the check until the connection is gone. */
export class Admitted {
  /** When it was last confirmed, monotonic ms. */
  confirmedAt = Number.NEGATIVE_INFINITY;
  /** It was let in though Postgres didn't say. */
  isUnconfirmed = false;
  /** Its connection is closed, or is refused. */
  inactive: Inactive | undefined;

  constructor(
    readonly subject: Subject,
    /** Called once, if a later verdict is a confirmed no. */
    readonly onInactive: (verdict: Inactive) => void,
  ) {}
}

/**
 * Who may be here. Three answers: yes, no, and that Postgres can't say; only a confirmed no refuses anybody or closes a
 * connection. Writes have their own fence, which fails closed.
 */
export class Admission extends Service {
  readonly #lookup: Lookup<Facts> | undefined;
  readonly #notices: Notices | undefined;
  readonly #metrics: AdmissionMetrics;
  readonly #admitted = new Set<Admitted>();
  /** Tenant → its people here; and tenant/user → theirs. */
  readonly #byTenant = new Map<string, Set<Admitted>>();
  readonly #byUser = new Map<string, Set<Admitted>>();
  /** Tenant for which back ends publish → when it was confirmed, the longest known first. */
  readonly #fenced = new Map<string, number>();
  /** When a tenant last changed, monotonic ms. */
  #changedAt = Number.NEGATIVE_INFINITY;
  readonly #stopping = new AbortController();
  #running: Promise<unknown> = Promise.resolve();
  #rechecking: Promise<void> = Promise.resolve();

  constructor(private readonly options: AdmissionOptions) {
    super();
    const { database, logger, meter } = options;
    this.#metrics = admissionMetrics(meter);
    meter.gauge({ name: 'admission_unconfirmed', help: 'Open sockets whose status Postgres could not say.' }, () =>
      database ? this.#unconfirmed().length : undefined,
    );
    if (!database) return;
    this.#lookup = new Lookup({
      database,
      name: 'admission',
      statement: FACTS_STATEMENT,
      width: FACTS_WIDTH,
      statements: Math.max(1, Math.min(2, database.size - 2)),
      parse: parseFacts,
      onChange: (isAnswering) => {
        if (isAnswering) this.#recheck(this.#unconfirmed());
      },
      logger,
    });
    this.#notices = new Notices({
      database,
      onNotice: (notice) => this.#noticed(notice),
      onHeard: () => this.#lookAgain(),
      logger,
    });
  }

  /** Changes are heard as they are committed: what was confirmed a moment ago still holds. */
  get isHeard(): boolean {
    return this.#notices?.isHeard ?? false;
  }

  protected async onStart(): Promise<void> {
    await this.#notices?.start();
    if (this.#lookup) this.#running = Promise.all([this.#revalidateForever(), this.#probeForever()]);
  }

  protected async onStop(): Promise<void> {
    this.#stopping.abort();
    await this.#notices?.stop();
    await within(1000, this.#running);
  }

  /** From now on notices find it. Ask for its verdict after this, not before. */
  enter(subject: Subject, onInactive: Admitted['onInactive']): Admitted {
    const admitted = new Admitted(subject, onInactive);
    this.#admitted.add(admitted);
    addTo(this.#byTenant, subject.tenant, admitted);
    addTo(this.#byUser, userOf(subject), admitted);
    return admitted;
  }

  /** Idempotent. */
  leave(admitted: Admitted): void {
    this.#admitted.delete(admitted);
    removeFrom(this.#byTenant, admitted.subject.tenant, admitted);
    removeFrom(this.#byUser, userOf(admitted.subject), admitted);
  }

  /**
   * Whether somebody who is proven may come in.
   *
   * @param signal its connection is gone: its look-up ends, and nothing is counted
   * @returns whether its device is paired; undefined: not known
   * @throws {RelayError} `tenant_inactive`, `unauthorized`; `unavailable` where the status is not known and that refuses
   */
  async check(admitted: Admitted, signal: AbortSignal): Promise<boolean | undefined> {
    const { isOpen } = this.options;
    const verdict = await this.#verdict(admitted.subject, signal);
    if (signal.aborted) return undefined;
    // a notice may have said no while the answer was on its way
    const { is } = admitted.inactive ?? verdict;
    this.#metrics.checks.inc({ outcome: is === 'unknown' ? 'check_error' : is });
    this.#apply(admitted, verdict, undefined);
    if (admitted.inactive) throw new RelayError(admitted.inactive.code, admitted.inactive.reason);
    if (verdict.is === 'active') return verdict.isPaired;
    if (!isOpen) throw new RelayError('unavailable', 'the status of the tenant cannot be had now');
    admitted.isUnconfirmed = true;
    return undefined;
  }

  /**
   * For a write: nothing to wait for when the verdict is confirmed and young, else a promise.
   *
   * @throws {RelayError} `tenant_inactive`, `unauthorized`, or `unavailable` when Postgres can't say; the promise rejects so
   */
  fence(admitted: Admitted): Promise<void> | undefined {
    if (!this.#lookup) return undefined;
    if (!admitted.inactive && performance.now() - admitted.confirmedAt < WRITE_FENCE_MS) return undefined;
    return this.#fence(admitted.subject, (verdict) => this.#apply(admitted, verdict, 'revalidation'));
  }

  /** The same for who writes on behalf of a tenant. */
  fenceTenant(tenant: string): Promise<void> | undefined {
    if (!this.#lookup) return undefined;
    if (this.#isConfirmed(tenant)) return undefined;
    return this.#fence({ tenant }, (verdict) => {
      if (verdict.is === 'active') this.#remember(tenant, verdict.at);
    });
  }

  /**
   * For what else back ends do in the name of a tenant: only a confirmed no refuses it.
   *
   * @throws {RelayError} `tenant_inactive`; the promise rejects so
   */
  passTenant(tenant: string): Promise<void> | undefined {
    if (!this.#lookup || this.#isConfirmed(tenant)) return undefined;
    return this.#verdict({ tenant }).then((verdict) => {
      if (verdict.is === 'active') this.#remember(tenant, verdict.at);
      if (verdict.is === 'inactive') throw new RelayError(verdict.code, verdict.reason);
    });
  }

  #isConfirmed(tenant: string): boolean {
    const at = this.#fenced.get(tenant) ?? Number.NEGATIVE_INFINITY;
    return this.isHeard && performance.now() - at < WRITE_FENCE_MS;
  }

  async #fence(subject: Subject, onVerdict: (verdict: Verdict) => void): Promise<void> {
    const verdict = await this.#verdict(subject);
    onVerdict(verdict);
    if (verdict.is === 'active') return;
    this.#metrics.fenced.inc({ reason: verdict.is });
    if (verdict.is === 'inactive') throw new RelayError(verdict.code, verdict.reason);
    throw new RelayError('unavailable', 'the status of the tenant cannot be had now');
  }

  /** Never rejects: whatever goes wrong here is a fault of ours, and `unknown`. */
  async #verdict(subject: Subject, signal?: AbortSignal): Promise<Verdict> {
    const { isStrict, logger } = this.options;
    const at = performance.now();
    if (!this.#lookup) return { is: 'active', isPaired: undefined, at };
    try {
      const answer = await this.#lookup.ask(keyOf(subject), signal);
      if (answer.is === 'unknown') return UNKNOWN;
      if (answer.is === 'impossible') return IMPOSSIBLE;
      return judge(subject, answer.is === 'found' ? answer.found : undefined, at, isStrict);
    } catch (error) {
      logger.error({ event: 'verdict_failed', err: error }, 'a fault of ours: the status counts as unknown');
      return UNKNOWN;
    }
  }

  #remember(tenant: string, at: number): void {
    // a notice came while the answer was on its way
    if (at < this.#changedAt) return;
    this.#fenced.delete(tenant);
    this.#fenced.set(tenant, at);
    const [oldest] = this.#fenced.keys();
    if (this.#fenced.size > MAX_FENCED && oldest !== undefined) this.#fenced.delete(oldest);
  }

  /** @param by how it came to somebody who is in already; undefined: it is asked for at the door, which says it itself */
  #apply(admitted: Admitted, verdict: Verdict, by: 'notice' | 'revalidation' | undefined): void {
    if (verdict.is === 'unknown' || admitted.inactive) return;
    // somebody with that id is there: what the server can't take is a fault of ours or its
    if (verdict === IMPOSSIBLE && by) return;
    if (verdict.is === 'active') {
      admitted.confirmedAt = verdict.at;
      admitted.isUnconfirmed = false;
      return;
    }
    admitted.inactive = verdict;
    admitted.confirmedAt = Number.NEGATIVE_INFINITY;
    if (!by || !this.#admitted.has(admitted)) return;
    this.#metrics.closed.inc({ by });
    admitted.onInactive(verdict);
  }

  #unconfirmed(): Admitted[] {
    return [...this.#admitted].filter(({ isUnconfirmed }) => isUnconfirmed);
  }

  // --- changes

  #noticed(notice: Notice): void {
    this.options.onNotice?.(notice);
    const [kind, tenant = '', user = '', device] = notice;
    if (kind === 'everything') return this.#lookAgain();
    if (kind === 'tenant') return this.#recheckTenant(tenant);
    if (kind === 'token')
      return this.#recheckNow(
        [...(this.#byTenant.get(tenant) ?? [])].filter(({ subject }) => subject.tokenId === user),
      );
    const people = [...(this.#byUser.get(userOf({ tenant, user })) ?? [])];
    if (kind === 'user') this.#recheckNow(people);
    if (kind === 'device') this.#recheckNow(people.filter(({ subject }) => subject.device === device));
  }

  /** Changes may have been missed, or are too many to name. */
  #lookAgain(): void {
    this.#changedAt = performance.now();
    this.#fenced.clear();
    this.options.onUnheard?.();
    this.#recheck([...this.#admitted]);
  }

  /** One question for all of them. */
  #recheckTenant(tenant: string): void {
    this.#changedAt = performance.now();
    this.#fenced.delete(tenant);
    const people = this.#byTenant.get(tenant);
    if (!people) return;
    void this.#verdict({ tenant }).then((verdict) => {
      // whoever is active otherwise may still be revoked as a user: that is not asked here
      if (verdict.is === 'inactive') for (const admitted of [...people]) this.#apply(admitted, verdict, 'notice');
      if (verdict.is === 'unknown') for (const admitted of people) admitted.isUnconfirmed = true;
    });
  }

  #recheckNow(people: readonly Admitted[]): void {
    void this.#confirm(people, 'notice');
  }

  /** In turn with other rechecks, in slices. */
  #recheck(people: readonly Admitted[]): void {
    this.#rechecking = this.#rechecking.then(() => this.#confirm(people, 'revalidation'));
  }

  async #confirm(people: readonly Admitted[], by: 'notice' | 'revalidation'): Promise<void> {
    for (let from = 0; from < people.length && !this.#stopping.signal.aborted; from += SLICE) {
      await Promise.all(
        people.slice(from, from + SLICE).map(async (admitted) => {
          if (!this.#admitted.has(admitted)) return;
          const verdict = await this.#verdict(admitted.subject);
          if (verdict.is === 'unknown') admitted.isUnconfirmed = true;
          this.#apply(admitted, verdict, by);
        }),
      );
      if (!this.#lookup?.isAnswering) {
        // they are asked again when it answers
        for (const admitted of people.slice(from)) admitted.isUnconfirmed = true;
        return;
      }
    }
  }

  async #revalidateForever(): Promise<void> {
    const { signal } = this.#stopping;
    const { revalidateMs } = this.options;
    while (!signal.aborted) {
      await sleep(revalidateMs, signal);
      this.#recheck([...this.#admitted]);
      await this.#rechecking;
    }
  }

  /** Somebody must ask whether Postgres is back, though nobody connects. */
  async #probeForever(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      await sleep(PROBE_MS / 2 + Math.random() * PROBE_MS, signal);
      if (!this.#lookup?.isAnswering) await this.#lookup?.ask(keyOf({ tenant: 'default' }));
    }
  }
}

function userOf({ tenant, user = '' }: Subject): string {
  return `${escapePart(tenant)}/${escapePart(user)}`;
}

function addTo<T>(map: Map<string, Set<T>>, key: string, item: T): void {
  const set = map.get(key) ?? new Set();
  set.add(item);
  map.set(key, set);
}

function removeFrom<T>(map: Map<string, Set<T>>, key: string, item: T): void {
  const set = map.get(key);
  if (set?.delete(item) && set.size === 0) map.delete(key);
}
