import type { RelayConfig } from '../config.js';
import { VERSION } from '../version.js';
import { signToken } from './token.js';

/** What a newcomer does next: everything in it can be pasted as it stands. */
export async function welcome(
  { port, opsPort }: { readonly port: number; readonly opsPort: number },
  { jwtSecret, socketPath }: RelayConfig,
  apiKey: string,
): Promise<string> {
  const caps = { subscribe: ['*'], publish: ['*'] };
  const token =
    jwtSecret === undefined
      ? '<a token of your issuer>'
      : await signToken(jwtSecret, { user: 'me', ttlMs: 24 * 3_600_000, caps });
  const path = socketPath === '/socket.io' ? '' : `path: '${socketPath}', `;
  return `
Holdfast ${VERSION} serves http://localhost:${port}   (probes and metrics: http://localhost:${opsPort}/metrics)

A token to try, good for a day, that may subscribe and publish everywhere:
${token}

Save this as client.mjs in this folder (elsewhere, npm install socket.io-client first) and run node client.mjs:

  import { io } from 'socket.io-client';
  const token = '${token}';
  const socket = io('http://localhost:${port}', { ${path}transports: ['websocket'], auth: { token } });
  socket.on('connect', async () => {
    console.log('connected', { recovered: socket.recovered });
    await socket.emitWithAck('subscribe', { room: 'news' });
    if (!socket.recovered) console.log(await socket.emitWithAck('publish', { room: 'news', event: 'hello', data: 'world' }));
  });
  socket.on('hello', (data, meta, position) => console.log(data, meta, position));
  socket.on('connect_error', (error) => console.log(error.message));

Or publish over HTTP (its description: http://localhost:${port}/docs):

  curl -s http://localhost:${port}/v1/publish -H 'content-type: application/json' \\
    -H 'authorization: Bearer ${apiKey}' -d '{"room":"news","event":"hello","data":"again"}'

Kill this process any way you like and start it again: clients come back and miss nothing. Ctrl-C stops it.
`;
}
