import type { IncomingMessage } from 'node:http';
import { isIP } from 'node:net';

/**
 * Where a client comes from, as far as it can be known: behind a proxy the peer is the proxy, and what a client writes into
 * `X-Forwarded-For` itself proves nothing.
 *
 * @param proxies how many proxies stand before this pod and add to the header; undefined: not known, and so is the address
 */
export function addressOf({ socket, headers }: IncomingMessage, proxies: number | undefined): string | undefined {
  if (proxies === undefined) return undefined;
  if (proxies === 0) return socket.remoteAddress;
  const text = headers['x-forwarded-for'];
  const forwarded = (Array.isArray(text) ? text.join(',') : (text ?? '')).split(',').map((part) => part.trim());
  const address = withoutPort(forwarded.at(-proxies) ?? '');
  return isIP(address) ? address : undefined;
}

/** `192.0.2.1:4711`, `[2001:db8::1]:4711`, as some proxies write it. */
function withoutPort(text: string): string {
  return /^\[(.+)\](?::\d+)?$/.exec(text)?.[1] ?? /^([\d.]+):\d+$/.exec(text)?.[1] ?? text;
}
