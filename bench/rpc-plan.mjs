import { nowUs } from './answer.mjs';

/** Of the first call, so that the digits of all are as many. */
const FIRST = 1_000_000;
/** With the number the parameters are 200 bytes of JSON. */
const text = 'x'.repeat(177);

let calls = 0;

/**
 * Makes calls, each of `callers` its next one when the last was answered. The handler gives back what it got, so that an answer to
 * another call, or to none, doesn't count for one.
 *
 * @param call `(caller, params)` → promise of the result
 */
export async function callAll({ count, callers }, call) {
  const latencies = new Float64Array(count);
  let made = 0;
  const lane = async (caller) => {
    while (made < count) {
      const k = made++;
      const params = { n: FIRST + calls++, text };
      const from = nowUs();
      const result = await call(caller, params);
      latencies[k] = nowUs() - from;
      if (result?.n !== params.n || result.text !== text)
        throw new Error(`call ${params.n} was answered with ${JSON.stringify(result)}`);
    }
  };
  const startedAt = nowUs();
  await Promise.all(Array.from({ length: callers }, (_, caller) => lane(caller)));
  const endedAt = nowUs();
  latencies.sort();
  const quantile = (q) => latencies[Math.min(count - 1, Math.floor(count * q))];
  return { wallUs: endedAt - startedAt, p50: quantile(0.5), p99: quantile(0.99) };
}
