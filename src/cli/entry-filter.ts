import type { Entry } from '../log/index.js';
import { scoped } from '../wire/names.js';

/** Which entries are shown: a tenant's, and of one room; what went to no room is its publisher's tenant's. */
export function entryFilter(tenant: string | undefined, room: string | undefined): (entry: Entry) => boolean {
  const name = room === undefined ? undefined : tenant === undefined ? `/${scoped(room)}` : scoped(tenant, room);
  const prefix = tenant === undefined ? '' : `${scoped(tenant)}/`;
  return ({ header: { rooms, publisher } }) => {
    if (name !== undefined) return rooms.some((each) => (tenant === undefined ? each.endsWith(name) : each === name));
    return (rooms.length === 0 ? [publisher] : rooms).some((each) => each.startsWith(prefix));
  };
}
