import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';

/** A port of 127.0.0.1 that nobody listens on. Somebody may take it before its user does: try again then. */
export async function freePort(): Promise<number> {
  const port = await bind(0);
  if (port === undefined) throw new Error('127.0.0.1 has no free port');
  return port;
}

export async function isPortFree(port: number): Promise<boolean> {
  return (await bind(port)) !== undefined;
}

/** Listens for a moment; the port, or `undefined` when it is taken. */
async function bind(port: number): Promise<number | undefined> {
  const server = createServer().listen(port, '127.0.0.1');
  try {
    await once(server, 'listening');
  } catch {
    return undefined;
  }
  const { port: bound } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return bound;
}
