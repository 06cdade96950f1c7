import { Client as PgClient } from 'pg';
import type { AdmissionRig } from './rig.js';

type End = () => Promise<void>;

export interface Fault {
  /** As the end of "Postgres is …". */
  readonly name: string;
  /** Resolves, when it is in force, with what ends it. */
  begin(rig: AdmissionRig): Promise<End>;
  /** The server answers, and says that the look-up can't be: a fault of somebody's, and an `error` in the pods' log. */
  readonly isOurs?: boolean;
}

/** What a database does instead of answering. */
export const FAULTS: readonly Fault[] = [
  {
    name: 'stopped',
    async begin({ postgres }) {
      await postgres.shutDown('immediate');
      return () => postgres.start();
    },
  },
  {
    name: 'SIGSTOPped',
    async begin({ postgres }) {
      await postgres.pause();
      return () => postgres.resume();
    },
  },
  {
    name: 'black-holed',
    async begin({ proxy }) {
      proxy.blackhole(true);
      return async () => proxy.blackhole(false);
    },
  },
  {
    name: 'slow',
    async begin({ proxy }) {
      proxy.delay(700);
      return async () => proxy.delay(0);
    },
  },
  { name: 'locked, its pool exhausted', begin: lockTables },
  {
    name: 'without a table',
    async begin(rig) {
      await rig.sql('alter table tenants rename to tenants_away');
      return async () => void (await rig.sql('alter table tenants_away rename to tenants'));
    },
    isOurs: true,
  },
  {
    name: 'with a column of the wrong type',
    async begin(rig) {
      await rig.sql('alter table devices rename id to id_away; alter table devices add id int');
      return async () => void (await rig.sql('alter table devices drop id; alter table devices rename id_away to id'));
    },
    isOurs: true,
  },
];

/** Holds every table that admission reads: each look-up waits, and with it its connection. */
async function lockTables({ databaseUrl }: AdmissionRig): Promise<End> {
  const client = new PgClient(databaseUrl);
  await client.connect();
  await client.query('begin; lock table tenants, devices, api_keys, revocations in access exclusive mode');
  return () => client.end();
}

/** A fault that ends with its test, also when that fails: the next one finds everything as it was. */
export async function begun(fault: Fault, rig: AdmissionRig) {
  const end = await fault.begin(rig);
  let ending: Promise<void> | undefined;
  const endOnce = (): Promise<void> => {
    ending ??= end();
    return ending;
  };
  return { end: endOnce, [Symbol.asyncDispose]: endOnce };
}
