import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { getContainerRuntimeClient, type StartedTestContainer } from 'testcontainers';

const LOG_LINES = 40;

/** A container that dies and comes back with its files, its name in the network and its fixed ports. */
export class Container implements AsyncDisposable {
  constructor(
    readonly name: string,
    private readonly started: StartedTestContainer,
  ) {}

  get host(): string {
    return this.started.getHost();
  }

  /** SIGKILL; resolves when it is gone. */
  async kill(): Promise<void> {
    const container = await this.#handle();
    await container.kill({ signal: 'SIGKILL' });
    await container.wait();
  }

  /** `docker stop`: SIGTERM, and SIGKILL after `withinSeconds`. Returns the exit code; 137 tells of the SIGKILL. */
  async stop(withinSeconds: number): Promise<number> {
    const container = await this.#handle();
    await container.stop({ t: withinSeconds });
    return (await container.inspect()).State.ExitCode;
  }

  /** Again, after a kill or a stop; resolves when it is ready. */
  async start(): Promise<void> {
    await this.started.restart();
  }

  /** What the command wrote. @throws when it ends with another code than 0 */
  async exec(...command: string[]): Promise<string> {
    const { exitCode, output } = await this.started.exec(command);
    if (exitCode !== 0) throw new Error(`${this.name}: ${command.join(' ')} ended with ${exitCode}: ${output}`);
    return output.trim();
  }

  /** The last lines, of all its runs, for an error's text. */
  async logs(): Promise<string> {
    const id = this.started.getId();
    const { stdout, stderr } = await promisify(execFile)('docker', ['logs', '--tail', String(LOG_LINES), id]);
    return `--- ${this.name}\n${stdout}${stderr}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.started.stop();
  }

  async #handle() {
    return (await getContainerRuntimeClient()).container.getById(this.started.getId());
  }
}
