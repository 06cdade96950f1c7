import { randomBytes } from 'node:crypto';

/** How often it is looked whether those who are waited for still live; only while somebody is waited for. */
const CHECK_MS = 500;

export interface Request {
  /** Processes that have not answered. */
  readonly asked: Set<string>;
  readonly onAnswer: (answer: unknown) => void;
  /** One of them has no such namespace, or is gone. */
  readonly onAbsent: () => void;
  readonly onTimeout: () => void;
}

/**
 * Questions to other processes. Each waits for those that were alive when it was put; one that dies meanwhile, or has nothing
 * to say, is not waited for.
 */
export class Requests {
  readonly #open = new Map<string, Request & { readonly timer: NodeJS.Timeout }>();
  #checking: NodeJS.Timeout | undefined;

  constructor(private readonly live: () => Promise<readonly string[]>) {}

  get size(): number {
    return this.#open.size;
  }

  open(request: Request, timeoutMs: number): string {
    const id = randomBytes(8).toString('hex');
    const timer = setTimeout(() => {
      this.close(id);
      request.onTimeout();
    }, timeoutMs);
    this.#open.set(id, { ...request, timer });
    this.#checking ??= setInterval(() => void this.#check(), CHECK_MS).unref();
    return id;
  }

  close(id: string): void {
    clearTimeout(this.#open.get(id)?.timer);
    this.#open.delete(id);
    if (this.#open.size > 0) return;
    clearInterval(this.#checking);
    this.#checking = undefined;
  }

  /** @param isLast nothing more will come from that process */
  answer(id: string, from: string, answer: unknown, isLast: boolean): void {
    const request = this.#open.get(id);
    if (!request) return;
    if (isLast && !request.asked.delete(from)) return;
    request.onAnswer(answer);
  }

  absent(id: string, from: string): void {
    const request = this.#open.get(id);
    if (request?.asked.delete(from)) request.onAbsent();
  }

  stop(): void {
    for (const [id, { onTimeout }] of [...this.#open]) {
      this.close(id);
      onTimeout();
    }
  }

  async #check(): Promise<void> {
    const live = await this.live().catch(() => undefined);
    if (!live) return;
    for (const [id, { asked }] of this.#open)
      for (const process of [...asked]) if (!live.includes(process)) this.absent(id, process);
  }
}
