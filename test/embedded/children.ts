import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const CHILD = fileURLToPath(new URL('./child.mjs', import.meta.url));

export interface Child {
  readonly process: ChildProcess;
  /** Its one line. */
  readonly said: { ok: boolean; url: string; name: string; message: string };
  kill(): Promise<void>;
}

/** Runs what `npm run build` made: Node 20 runs no TypeScript. */
export async function launch(verb: 'lock' | 'start', dir: string): Promise<Child> {
  const child = spawn(process.execPath, [CHILD, verb, dir], { stdio: ['pipe', 'pipe', 'inherit'] });
  const exit = once(child, 'exit');
  const [line] = (await once(createInterface(child.stdout), 'line')) as [string];
  const kill = async (): Promise<void> => {
    child.kill('SIGKILL');
    await exit;
  };
  return { process: child, said: JSON.parse(line), kill };
}
