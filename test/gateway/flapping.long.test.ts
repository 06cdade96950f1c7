import { test } from 'vitest';
import { flap } from './flap.js';

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

test(
  'clients that flap while a pod is killed and paused, and its links to Redis are cut, lose and double nothing',
  () =>
    flap({
      runMs: 60_000,
      faults: async (stack, isOver) => {
        for (let round = 0; !isOver(); round++) {
          await pause(2000 + Math.random() * 2000);
          const pod = stack.pod(round % 2);
          if (round % 3 === 0) {
            await pod.sigkill();
            await pause(Math.random() * 1000);
            await pod.start();
          } else if (round % 3 === 1) {
            pod.pause();
            await pause(500 + Math.random() * 4000);
            pod.resume();
          } else await stack.client.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        }
      },
    }),
  180_000,
);
