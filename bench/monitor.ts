import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

/**
 * Counts the commands that a Redis executes, those of scripts too. Over a plain socket, since ioredis's monitor fails
 * when a busy Redis reports the first command in the same packet as its OK.
 */
export class Monitor implements Disposable {
  #matches = 0;
  #rest = '';

  private constructor(
    private readonly socket: Socket,
    private readonly isWanted: (command: readonly string[], source: string) => boolean,
  ) {
    socket.setEncoding('latin1');
    socket.on('data', (chunk: string) => this.#take(chunk));
  }

  /** @param isWanted gets name and arguments of a command, as MONITOR quotes them, and its client's address or `lua` */
  static async start(
    port: number,
    isWanted: (command: readonly string[], source: string) => boolean,
  ): Promise<Monitor> {
    const socket = connect(port, '127.0.0.1');
    await once(socket, 'connect');
    const monitor = new Monitor(socket, isWanted);
    socket.write('MONITOR\r\n');
    await once(socket, 'data');
    return monitor;
  }

  /** How many of them there were. */
  async stop(): Promise<number> {
    const ended = once(this.socket, 'end');
    this.socket.write('QUIT\r\n');
    await ended;
    return this.#matches;
  }

  [Symbol.dispose](): void {
    this.socket.destroy();
  }

  #take(chunk: string): void {
    const lines = (this.#rest + chunk).split('\r\n');
    this.#rest = lines.pop() as string;
    for (const line of lines) {
      const command = [...line.matchAll(/"((?:[^"\\]|\\.)*)"/g)].map(([, text]) => text as string);
      const source = /^\S+ \[\d+ (\S+)\]/.exec(line)?.[1] ?? '';
      if (this.isWanted(command, source)) this.#matches++;
    }
  }
}
