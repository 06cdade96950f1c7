import type { Command } from 'commander';
import { SignJWT } from 'jose';
import { loadToolConfig } from '../config.js';
import { parseDuration } from '../core/duration.js';
import { FatalError } from '../core/errors.js';
import { readSecrets } from '../embedded/index.js';
import { isName } from '../wire/names.js';

interface Options {
  readonly user: string;
  readonly tenant?: string;
  readonly device?: string;
  readonly ttl: string;
  readonly subscribe?: string[];
  readonly publish?: string[];
}

export interface TokenClaims {
  readonly user: string;
  readonly tenant?: string | undefined;
  readonly device?: string | undefined;
  readonly ttlMs: number;
  readonly caps?: Readonly<Record<string, readonly string[]>> | undefined;
}

export function signToken(secret: string, { user, tenant, device, ttlMs, caps }: TokenClaims): Promise<string> {
  return new SignJWT({
    ...(tenant !== undefined && { tenant }),
    ...(device !== undefined && { device }),
    ...(caps && { caps }),
  })
    .setProtectedHeader({ alg: 'HS256', typ: 'JWT' })
    .setSubject(user)
    .setIssuedAt()
    .setExpirationTime(Math.floor((Date.now() + ttlMs) / 1000))
    .sign(new TextEncoder().encode(secret));
}

export function addToken(root: Command): void {
  root
    .command('token')
    .description('print a JWT for a user, signed with HOLDFAST_JWT_SECRET or the secret of the data folder')
    .requiredOption('-u, --user <name>', 'claim sub')
    .option('-t, --tenant <name>', 'claim tenant')
    .option('-d, --device <name>', 'claim device')
    .option('--ttl <duration>', 'how long it is good: 30s, 15m, 1h', '1h')
    .option('--subscribe <patterns...>', 'rooms that it may subscribe to; * stands for anything')
    .option('--publish <patterns...>', 'rooms that it may publish to')
    .action(async ({ user, tenant, device, ttl, subscribe, publish }: Options) => {
      const ttlMs = parseDuration(ttl);
      if (ttlMs === undefined || ttlMs < 1000)
        throw new FatalError(`--ttl: wants a duration such as 30s or 1h, got ${JSON.stringify(ttl)}`);
      for (const [option, value] of Object.entries({ user, tenant, device }))
        if (value !== undefined && !isName(value))
          throw new FatalError(`--${option}: wants 1 to 200 characters without control characters`);
      const config = loadToolConfig();
      if (config.jwtPublicKey !== undefined || config.jwtJwksUrl !== undefined)
        throw new FatalError('tokens are signed by your issuer here: this relay only has a public key');
      const secret = config.jwtSecret ?? (await readSecrets(config.dataDir))?.jwtSecret;
      if (secret === undefined)
        throw new FatalError(
          `nothing to sign with: set HOLDFAST_JWT_SECRET, or start a relay on ${config.dataDir} with npm start`,
        );
      const caps = subscribe || publish ? { ...(subscribe && { subscribe }), ...(publish && { publish }) } : undefined;
      process.stdout.write(`${await signToken(secret, { user, tenant, device, ttlMs, caps })}\n`);
    });
}
