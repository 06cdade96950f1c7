import { expect, it } from 'vitest';
import { runDeploys } from '../test/acceptance/deploys.js';
import { isClean, printLedger } from '../test/harness/ledger.js';
import { setting } from './settings.js';

/** HAMMER_PODS, HAMMER_CLIENTS, HAMMER_HTTP_PER_SECOND, HAMMER_SOCKET_PER_SECOND, HAMMER_CALM_MS, HAMMER_ROUNDS */
it('deploys, kills, pauses and a Redis restart under load', async () => {
  const result = await runDeploys({
    pods: setting('PODS', 3),
    clients: setting('CLIENTS', 50),
    httpPerSecond: setting('HTTP_PER_SECOND', 150),
    socketPerSecond: setting('SOCKET_PER_SECOND', 60),
    calmMs: setting('CALM_MS', 2000),
    rounds: setting('ROUNDS', 1),
  });
  console.log(JSON.stringify({ ...result, ledger: undefined }, null, 2));
  console.log(printLedger(result.ledger));
  expect(isClean(result.ledger)).toBe(true);
});
