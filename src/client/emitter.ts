/** Event name → payload, with listeners that can't hurt who emits: what one throws is reported as uncaught, as by DOM events. */
export class Emitter<Events extends object> {
  readonly #listeners: { [Name in keyof Events]?: Set<(payload: Events[Name]) => void> } = {};

  /** @returns ends it */
  on<Name extends keyof Events>(name: Name, listener: (payload: Events[Name]) => void): () => void {
    this.#listeners[name] ??= new Set();
    const listeners = this.#listeners[name] as Set<(payload: Events[Name]) => void>;
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }

  /** @returns false if nobody listens */
  emit<Name extends keyof Events>(name: Name, payload: Events[Name]): boolean {
    const listeners = [...(this.#listeners[name] ?? [])];
    for (const listener of listeners) {
      try {
        listener(payload);
      } catch (error) {
        queueMicrotask(() => {
          throw error;
        });
      }
    }
    return listeners.length > 0;
  }
}
