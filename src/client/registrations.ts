import { RelayError } from '../core/errors.js';
import { type Answer, Answers, failure } from './answers.js';
import { type AskOptions, ask, inTurns } from './ask.js';
import { checkSize, type SizeLimit } from './measure.js';
import { newId } from './new-id.js';
import { type Handler, type IncomingCall, Registration } from './registration.js';

/** The relay answers within 2 s or not at all. */
const ANSWER_MS = 10_000;
const MAX_ERROR_TEXT = 1000;

type AnyHandler = Handler<never, unknown>;

/** `rpc-request` */
interface Request extends Omit<IncomingCall, 'signal'> {
  readonly params: unknown;
}

interface Entry {
  readonly registration: Registration;
  readonly handler: AnyHandler;
  readonly inWork: Set<Promise<Answer>>;
}

/** Sees to it that the relay has the methods that are registered on every connection, and that no call of them runs twice. */
export class Registrations {
  /** Those that the relay has not yet been told the end of too. */
  readonly #entries = new Map<string, Entry>();
  readonly #leaving = new Map<string, Promise<void>>();
  readonly #answers = new Answers();
  /** By which the relay knows that a call which was sent here before may come again: whoever has `#answers`. */
  readonly #instance = newId();

  constructor(private readonly options: AskOptions & SizeLimit) {}

  /** @throws {RelayError} `conflict` */
  add(method: string, handler: AnyHandler): Registration {
    const known = this.#entries.get(method);
    if (known && known.registration.state !== 'ended')
      throw new RelayError('conflict', `${JSON.stringify(method)} is registered already`);
    const registration: Registration = new Registration(method, {
      enter: () => this.#enter(entry),
      leave: () => this.#leave(entry),
    });
    const entry: Entry = { registration, handler, inWork: new Set() };
    this.#entries.set(method, entry);
    this.#enter(entry);
    return registration;
  }

  connected(isRecovered: boolean): void {
    const leaving = [...this.#leaving.keys()];
    this.#leaving.clear();
    if (isRecovered) for (const method of leaving) void this.#tell(method);
    const due = [...this.#entries.values()].filter(({ registration: { state } }) =>
      // what is recovered has its methods again, unless a newer one took them: they are not taken back
      isRecovered ? state === 'registering' : state === 'registering' || state === 'registered',
    );
    for (const { registration } of due) registration.begin();
    void inTurns(due, (entry) => this.#register(entry));
  }

  /** @returns false for what is no affair of its */
  take(event: string, args: readonly unknown[]): boolean {
    const [told, ack] = args as [
      Readonly<Record<string, unknown>> | undefined,
      ((answer: unknown) => void) | undefined,
    ];
    switch (event) {
      case 'rpc-request':
        if (told && ack) this.#answer(told as unknown as Request, ack);
        return true;
      case 'rpc-cancelled':
        this.#answers.giveUp(String(told?.id), new RelayError(told?.reason === 'timeout' ? 'timeout' : 'cancelled'));
        return true;
      case 'rpc-unregistered':
        this.#taken(String(told?.method), told?.reason);
        return true;
      default:
        return false;
    }
  }

  close(error: RelayError): void {
    this.#answers.close(error);
    for (const { registration } of this.#entries.values()) registration.end(error);
  }

  // --- what the relay has

  #enter(entry: Entry): void {
    if (this.options.connection.isConnected) void this.#register(entry);
  }

  async #register({ registration }: Entry): Promise<void> {
    const { method } = registration;
    const isWanted = (): boolean => registration.state === 'registering';
    try {
      // its own handler before
      const leaving = this.#leaving.get(method);
      if (leaving) await leaving;
      const answer = await ask(this.options, 'rpc-register', { method, dedupe: this.#instance }, ANSWER_MS, isWanted);
      if (answer) registration.registered();
    } catch (error) {
      if (!isWanted()) return;
      registration.end(error as RelayError);
      this.#forget(method, registration);
      this.options.onError(error as RelayError);
    }
  }

  async #leave({ registration, inWork }: Entry): Promise<void> {
    const { method, state } = registration;
    registration.end(new RelayError('cancelled', 'it was unregistered before'));
    if (state === 'registering' || state === 'registered') await this.#tell(method);
    this.#forget(method, registration);
    await Promise.all(inWork);
  }

  /** What can't be told now is told when the connection is back, if the relay then still has it. */
  #tell(method: string): Promise<void> {
    const isWanted = (): boolean => this.#leaving.get(method) === leaving;
    const leaving: Promise<void> = Promise.resolve()
      .then(() => ask(this.options, 'rpc-unregister', { method }, ANSWER_MS, isWanted))
      .then(
        (answer) => {
          if (answer && isWanted()) this.#leaving.delete(method);
        },
        // what the relay refuses to give up is nothing that it has
        () => {
          this.#leaving.delete(method);
        },
      );
    this.#leaving.set(method, leaving);
    return leaving;
  }

  /** The relay has it no longer for this client, without being asked. */
  #taken(method: string, reason: unknown): void {
    const registration = this.#entries.get(method)?.registration;
    if (!registration || registration.state === 'ended') return;
    if (reason === 'replaced') return registration.replaced();
    if (reason !== 'permission_denied') return;
    const error = new RelayError('permission_denied', `registering ${JSON.stringify(method)} is no longer allowed`);
    registration.end(error);
    this.#forget(method, registration);
    this.options.onError(error);
  }

  #forget(method: string, registration: Registration): void {
    if (this.#entries.get(method)?.registration === registration) this.#entries.delete(method);
  }

  // --- calls that come

  /** The answer goes out where the question came from, or nowhere: on another connection its number is another question's. */
  #answer(request: Request, ack: (answer: unknown) => void): void {
    const { connection } = this.options;
    const { session } = connection;
    const { handler = unknownHere, inWork } = this.#entries.get(request.method) ?? {};
    const answer = this.#answers.answer(request.id, (signal) => this.#run(handler, request, signal));
    inWork?.add(answer);
    void answer.then(({ value }) => {
      inWork?.delete(answer);
      if (session === connection.session) ack(value);
    });
  }

  async #run(handler: AnyHandler, { params, ...request }: Request, signal: AbortSignal): Promise<Answer> {
    try {
      const value = (await handler(params as never, { ...request, signal })) ?? null;
      return { value, bytes: checkSize('the result', value, this.options) };
    } catch (error) {
      return failure(textOf(error));
    }
  }
}

function unknownHere(_params: unknown, { method }: IncomingCall): never {
  throw new Error(`${JSON.stringify(method)} is not registered here`);
}

function textOf(error: unknown): string {
  try {
    const text = error instanceof Error ? error.message : String(error);
    return text.slice(0, MAX_ERROR_TEXT) || 'the handler failed';
  } catch {
    return 'the handler failed';
  }
}
