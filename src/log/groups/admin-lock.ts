import { randomBytes } from 'node:crypto';
import { RelayError } from '../../core/errors.js';
import type { Connection } from '../../redis/connect.js';
import type { GroupMemberKeys } from '../../redis/keys.js';
import { loadScript } from '../../redis/script.js';

const LOCK = loadScript(import.meta.url, 'admin-lock');
const UNLOCK = loadScript(import.meta.url, 'admin-unlock');
/** Should the administrator die, members wait no longer than this. In ms. */
const HOLD_MS = 30_000;
const MAX_NAMED = 5;

/**
 * Runs `work` while nobody is, or can become, a member of the group.
 *
 * @param work calls `prolong` before each of its steps, none of which may take half a minute
 * @throws {RelayError} `conflict` while it has live members, whom it names, or while somebody else changes it
 */
export async function whileIdle<T>(
  connection: Connection,
  { members, lock }: GroupMemberKeys,
  group: string,
  work: (prolong: () => Promise<void>) => Promise<T>,
): Promise<T> {
  const token = randomBytes(9).toString('base64url');
  const hold = async (): Promise<void> => {
    const [status, ...rest] = (await connection.run(LOCK, [members, lock], [token, HOLD_MS])) as [string, ...unknown[]];
    if (status === 'active')
      throw new RelayError('conflict', `${group} is active: stop ${textOf(rest as string[])} first`);
    if (status === 'locked')
      throw new RelayError(
        'conflict',
        `${group} is being changed by somebody else: try again in ${Math.ceil(Number(rest[0]) / 1000)} s at the latest`,
      );
  };
  await hold();
  try {
    return await work(hold);
  } finally {
    // where Redis is away, the lock lapses
    await connection.run(UNLOCK, [lock], [token]).catch(() => {});
  }
}

/** Some of them by name. */
function textOf(members: readonly string[]): string {
  const rest = members.length - MAX_NAMED;
  return members.slice(0, MAX_NAMED).join(', ') + (rest > 0 ? ` and ${rest} more` : '');
}
