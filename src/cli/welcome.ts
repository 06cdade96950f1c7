import { VERSION } from '../version.js';
import { signToken } from './token.js';

export interface Welcome {
  readonly port: number;
  readonly opsPort: number;
  readonly socketPath: string;
  /** The secret that this relay made for itself; absent when the operator configured what verifies tokens. */
  readonly ownSecret?: string | undefined;
  /** Whether `holdfast token` can sign here. */
  readonly canSign: boolean;
  /** The API key that this relay made for itself; absent when the operator configured some. */
  readonly ownApiKey?: string | undefined;
}

/**
 * What a newcomer does next: without settings, everything in it can be pasted as it stands. Nothing in it comes from what an
 * operator configured: a container's stdout is kept where many read it.
 */
export async function welcome({ port, opsPort, socketPath, ownSecret, canSign, ownApiKey }: Welcome): Promise<string> {
  const caps = { subscribe: ['*'], publish: ['*'] };
  const token =
    ownSecret !== undefined
      ? await signToken(ownSecret, { user: 'me', ttlMs: 24 * 3_600_000, caps })
      : canSign
        ? '<what holdfast token printed>'
        : '<a token of your issuer>';
  const about =
    ownSecret !== undefined
      ? `A token to try, good for a day, that may subscribe and publish everywhere:\n${token}`
      : canSign
        ? `A token to try: holdfast token --user me --subscribe '*' --publish '*'`
        : 'Your issuer signs the tokens.';
  const apiKey = ownApiKey ?? '<one of HOLDFAST_API_KEYS>';
  const path = socketPath === '/socket.io' ? '' : `path: '${socketPath}', `;
  return `
Holdfast ${VERSION} serves http://localhost:${port}   (probes and metrics: http://localhost:${opsPort}/metrics)

${about}

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
