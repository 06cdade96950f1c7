import type { IncomingHttpHeaders } from 'node:http';
import { isIP } from 'node:net';

/** Of a connection's first request. */
export interface Origin {
  /** Of the peer. */
  readonly address: string;
  readonly headers: IncomingHttpHeaders;
}

/**
 * Where a client comes from, as far as it can be known: behind a proxy the peer is the proxy, and what a client writes into
 * `X-Forwarded-For` itself proves nothing.
 *
 * @param proxies how many proxies stand before this pod and add to the header; undefined: not known, and so is the address
 * @returns what limits count: an IPv4 address, or the /64 of an IPv6 one
 */
export function addressOf({ address, headers }: Origin, proxies: number | undefined): string | undefined {
  if (proxies === undefined) return undefined;
  if (proxies === 0) return counted(address);
  const text = headers['x-forwarded-for'];
  const forwarded = (Array.isArray(text) ? text.join(',') : (text ?? '')).split(',').map((part) => part.trim());
  return counted(withoutPort(forwarded.at(-proxies) ?? ''));
}

/** `192.0.2.1:4711`, `[2001:db8::1]:4711`, as some proxies write it. */
function withoutPort(text: string): string {
  return /^\[(.+)\](?::\d+)?$/.exec(text)?.[1] ?? /^([\d.]+):\d+$/.exec(text)?.[1] ?? text;
}

/** Whoever has one address of a /64 mostly has all of them: each would be a limit of its own. */
function counted(address: string): string | undefined {
  const version = isIP(address);
  if (version === 0) return undefined;
  if (version === 4) return address;
  const groups = groupsOf(address);
  // a listener for both protocols sees IPv4 so
  if (/^(0:){5}ffff:/.test(groups.join(':')))
    return groups
      .slice(6)
      .flatMap((group) => [Number.parseInt(group, 16) >> 8, Number.parseInt(group, 16) & 255])
      .join('.');
  return `${groups.slice(0, 4).join(':')}::/64`;
}

/** The eight groups of an IPv6 address, each in its shortest form, however it is written. */
function groupsOf(address: string): string[] {
  const [unzoned] = address.split('%');
  const [head = [], tail = []] = new URL(`http://[${unzoned}]`).hostname
    .slice(1, -1)
    .split('::')
    .map((side) => side.split(':').filter((group) => group !== ''));
  return [...head, ...new Array<string>(8 - head.length - tail.length).fill('0'), ...tail];
}
