import { scoped } from '../../wire/names.js';

export interface DeviceOf {
  readonly tenant: string;
  readonly user: string;
  readonly device: string;
}

/** One connection that is, or wants to be, its device's session. */
export interface Holder {
  /** `<processId>.<random>`: unique per connection, and never a socket's id, which a client keeps when it recovers. */
  readonly id: string;
  /** False also when nothing is heard in time. */
  isAlive(withinMs: number): Promise<boolean>;
  /** It has lost its device: it is told `session_replaced` and disconnected. Called once at most. */
  evict(): void;
}

export type Decision =
  | {
      readonly is: 'admitted';
      /** `local`: Redis could not be asked, and this process decided for itself. */
      readonly how: 'admit' | 'takeover' | 'local';
    }
  | {
      readonly is: 'refused';
      readonly reason: 'session_settle' | 'flap' | 'reconnect';
      readonly retryAfterMs: number;
    };

/** `<tenant>/<user>/<device>`, each part escaped: nobody's device is another user's. */
export function scopeOf({ tenant, user, device }: DeviceOf): string {
  return scoped(tenant, user, device);
}

export function processOf(holderId: string): string {
  return holderId.slice(0, holderId.indexOf('.'));
}
