import { connect, type Socket } from 'node:net';
import { createInterface } from 'node:readline';

export interface MonitoredCommand {
  /** Redis's time, ms since 1970. */
  readonly at: number;
  /** `lua`: a script ran it, namely the last one that a client called. */
  readonly source: string;
  readonly args: readonly string[];
}

/** Whatever Redis runs, as MONITOR tells it; rejects while Redis is away. `onEnd`: Redis went away. */
export function monitor(
  port: number,
  onCommand: (command: MonitoredCommand) => void,
  onEnd: () => void = () => {},
): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1', () => socket.write('MONITOR\r\n'));
    let isWatching = false;
    const lines = createInterface({ input: socket });
    // it passes on what the socket says itself
    lines.on('error', () => {});
    lines.on('line', (line) => {
      if (line === '+OK') {
        isWatching = true;
        resolve(socket);
      } else if (line.startsWith('-')) socket.destroy();
      else onCommand(parse(line));
    });
    socket.on('error', () => {});
    socket.on('close', () => {
      if (isWatching) onEnd();
      else reject(new Error('MONITOR: Redis is away'));
    });
  });
}

/** A line such as `+1700000000.123456 [0 lua] "XACK" "stream" "group" "1-1"`. */
function parse(line: string): MonitoredCommand {
  const [, at, source] = /^\+([\d.]+) \[\d+ (\S+)\]/.exec(line) ?? [];
  const args = line.slice(line.indexOf('"') + 1, line.lastIndexOf('"')).split('" "');
  return { at: Number(at) * 1000, source: source ?? '', args };
}
