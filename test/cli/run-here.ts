import type { EventEmitter } from 'node:events';
import { vi } from 'vitest';
import { failWith } from '../../src/cli/output.js';
import { program } from '../../src/cli/program.js';
import { cleanEnv, type Env, type Run } from './run.js';

/** What would have ended the process. */
class Exit extends Error {
  constructor(readonly code: number) {
    super(`exit ${code}`);
  }
}

/** This process has one environment and one of each output: so commands take turns. */
let turn: Promise<unknown> = Promise.resolve();

/**
 * `holdfast <args>` to its end without a process of its own: for what a command says, since a start costs most of a second
 * of CPU. That each command also ends by itself, with its output whole, is for `run` to show.
 */
export function runHere(args: readonly string[], env: Env = {}): Promise<Run> {
  const running = turn.then(() => runInTurn(args, env));
  turn = running.catch(() => {});
  return running;
}

async function runInTurn(args: readonly string[], env: Env): Promise<Run> {
  const startedAt = performance.now();
  const said = { out: '', err: '' };
  const leaveNoListeners = listenersNow();
  const spies = [
    vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
      said.out += text;
      return true;
    }),
    vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
      said.err += text;
      return true;
    }),
    vi.spyOn(process, 'exit').mockImplementation((code) => {
      throw new Exit(Number(code ?? 0));
    }),
  ];
  const before = process.env;
  process.env = cleanEnv(env);
  try {
    return { code: await codeOf(args), ...said, tookMs: performance.now() - startedAt };
  } finally {
    process.env = before;
    for (const spy of spies) spy.mockRestore();
    leaveNoListeners();
  }
}

/** As `main.ts` does it. */
async function codeOf(args: readonly string[]): Promise<number> {
  try {
    await program()
      .parseAsync(args, { from: 'user' })
      .catch((error: unknown) => {
        if (error instanceof Exit) throw error;
        failWith(error);
      });
    return 0;
  } catch (error) {
    if (error instanceof Exit) return error.code;
    throw error;
  }
}

/** @returns what takes away the listeners that came since: a command counts on the end of its process for that */
function listenersNow(): () => void {
  const places: readonly (readonly [EventEmitter, string])[] = [
    [process, 'SIGTERM'],
    [process, 'SIGINT'],
    [process.stdout, 'error'],
  ];
  const before = places.map(([emitter, event]) => new Set(emitter.listeners(event)));
  return () => {
    for (const [index, [emitter, event]] of places.entries())
      for (const listener of emitter.listeners(event))
        if (!before[index]?.has(listener)) emitter.off(event, listener as () => void);
  };
}
