import { type Query, sqlState } from './database.js';

/**
 * Runs `work` between `begin` and `commit` on one connection.
 *
 * A statement that failed fails the whole, also when `work` caught its error: to the `commit` of such a transaction
 * Postgres answers with a rollback, and without an error. Of a connection that broke nothing more is asked; the server
 * rolls back by itself.
 */
export async function inTransaction<T>(connection: Query, work: (query: Query) => Promise<T>): Promise<T> {
  let failure: unknown;
  let isOver = false;
  const run: Query['query'] = async (text, values) => {
    try {
      return await connection.query(text, values);
    } catch (error) {
      failure ??= error;
      throw error;
    }
  };
  // whatever the role's default is: who waited for a lock must see what its holder committed
  await run('begin isolation level read committed');
  try {
    const result = await work({
      async query(text, values) {
        // it would run on its own, behind the commit
        if (isOver) throw new Error('this transaction is over');
        return run(text, values);
      },
    }).finally(() => {
      isOver = true;
    });
    if (failure !== undefined) throw failure;
    await run('commit');
    return result;
  } catch (error) {
    const isAnswering = failure === undefined || sqlState(failure) !== undefined;
    if (isAnswering) await connection.query('rollback').catch(() => {});
    throw error;
  }
}
