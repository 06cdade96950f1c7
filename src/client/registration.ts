// for applications whose `lib` is older than `await using`
/// <reference lib="esnext.disposable" preserve="true" />
import type { RelayError } from '../core/errors.js';
import { type Deferred, defer } from './deferred.js';
import { Emitter } from './emitter.js';

/** What a handler is told of the call that it runs. */
export interface IncomingCall {
  /** The same each time that this call is delivered; it is run once by one client, another process may get it as well. */
  readonly id: string;
  readonly method: string;
  /** When nobody waits for it any more, ms since 1970 by the relay's clock. */
  readonly deadline: number;
  /** 1, and more if it was sent to a daemon before. */
  readonly attempt: number;
  /** Aborts when nobody waits for it any more: it was cancelled, timed out, or the client was closed. */
  readonly signal: AbortSignal;
}

/** What it returns is the result; what it throws is the caller's `handler_error`, with its message. */
export type Handler<Params, Result> = (params: Params, call: IncomingCall) => Result | Promise<Result>;

/**
 * - `registering`: the relay has not taken it yet on this connection; it goes on by itself.
 * - `registered`: calls come here.
 * - `replaced`: calls go to a newer registration. It stays so until `register()`.
 * - `ended`: by `unregister()`, by a refusal, or with the client.
 */
export type RegistrationState = 'registering' | 'registered' | 'replaced' | 'ended';

export interface RegistrationEvents {
  /** Another daemon of this user has the method now. */
  replaced: { readonly method: string };
}

/** A method that this client runs, over all its connections, until it is unregistered. */
export class Registration implements AsyncDisposable {
  readonly #emitter = new Emitter<RegistrationEvents>();
  #state: RegistrationState = 'registering';
  #ready: Deferred<void> = defer();

  constructor(
    readonly method: string,
    private readonly hooks: { readonly enter: () => void; readonly leave: () => Promise<void> },
  ) {}

  get state(): RegistrationState {
    return this.#state;
  }

  /**
   * Resolves when calls come here.
   *
   * @throws {RelayError} `permission_denied`, `bad_request`; `cancelled` when it ended before
   */
  get ready(): Promise<void> {
    return this.#ready.promise;
  }

  /** @returns ends it */
  on<Name extends keyof RegistrationEvents>(
    name: Name,
    listener: (payload: RegistrationEvents[Name]) => void,
  ): () => void {
    return this.#emitter.on(name, listener);
  }

  /** Takes the method back after it was `replaced`; otherwise as `ready`. */
  register(): Promise<void> {
    if (this.#state === 'replaced') {
      this.begin();
      this.hooks.enter();
    }
    return this.ready;
  }

  /**
   * Calls that wait, and new ones, have `no_worker`; those in work go on. Resolves when the relay has been told, or at once when
   * there is no connection, and the handlers have given their answers: don't wait for it in one.
   */
  unregister(): Promise<void> {
    return this.hooks.leave();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.unregister();
  }

  /** @internal */
  begin(): void {
    if (this.#state === 'registering') return;
    this.#ready = defer();
    this.#state = 'registering';
  }

  /** @internal */
  registered(): void {
    this.#state = 'registered';
    this.#ready.resolve();
  }

  /** @internal */
  replaced(): void {
    if (this.#state === 'ended' || this.#state === 'replaced') return;
    this.#state = 'replaced';
    this.#ready.resolve();
    this.#emitter.emit('replaced', { method: this.method });
  }

  /** @internal */
  end(error: RelayError): void {
    if (this.#state === 'ended') return;
    this.#state = 'ended';
    this.#ready.reject(error);
    this.#ready = defer();
    this.#ready.reject(error);
  }
}
