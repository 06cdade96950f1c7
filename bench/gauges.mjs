import { readFileSync, writeFileSync } from 'node:fs';
import { Session } from 'node:inspector/promises';
import { monitorEventLoopDelay } from 'node:perf_hooks';

const profiler = new Session();
const loopDelay = monitorEventLoopDelay({ resolution: 5 });

/** What every pod can be asked about itself, whatever it serves. */
export const gauges = {
  /** µs of user and system time since the start. */
  cpu() {
    const { user, system } = process.cpuUsage();
    return user + system;
  },

  /** Bytes in use once the garbage is gone. */
  memory() {
    globalThis.gc();
    globalThis.gc();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  },

  /** From here on `strain` counts. */
  watch() {
    // 5 resets the highest RSS of /proc/self/status
    writeFileSync('/proc/self/clear_refs', '5');
    loopDelay.reset();
    loopDelay.enable();
  },

  /** The longest time that the event loop was blocked, in ms, and the highest RSS, in bytes, since `watch`. */
  strain() {
    loopDelay.disable();
    const kib = Number(/VmHWM:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))[1]);
    return { blockedMs: loopDelay.max / 1e6, peakRss: kib * 1024 };
  },

  async profile() {
    profiler.connect();
    await profiler.post('Profiler.enable');
    await profiler.post('Profiler.start');
  },

  async profiled() {
    const { profile } = await profiler.post('Profiler.stop');
    profiler.disconnect();
    return profile;
  },
};
