import { scoped } from '../wire/names.js';

/** All keys of one partition share its hash tag, so a script may touch them together on Redis Cluster too. */
export interface PartitionKeys {
  /** The entries: a stream. */
  readonly stream: string;
  /** Hash: epoch, last offset and ms, bytes, first offset, open segment, epoch history, entries cut unread. */
  readonly meta: string;
  /** List of closed segments. */
  readonly segments: string;
  /** Hash: producer → its last batch and that batch's answer. */
  readonly producers: string;
  /** Idempotency ids in three time buckets (hashes). */
  readonly ids: readonly [string, string, string];
  /** Hash: pod name → position, epoch, process id and time of its last commit. */
  readonly offsets: string;
}

/** Of a back-end group in one partition: in the partition's slot. */
export interface GroupKeys {
  /** Hash: id up to which all is done and its epoch; who has the partition (ordered groups); dead letters dropped. */
  readonly state: string;
  /** Hash: entry id → why its deliveries failed, JSON. */
  readonly failures: string;
  /** Stream of dead letters. */
  readonly dead: string;
  /** Stream of dead letters that come back, which the group reads beside the log. */
  readonly redriven: string;
}

/** Who reads for a back-end group, over all partitions: in a slot of their own. */
export interface GroupMemberKeys {
  /** Sorted set: member id → end of its lease, Redis ms. */
  readonly members: string;
  /** Hash: member id → what it says of itself, JSON. */
  readonly details: string;
  /** Taken for a short time by an administrator: nobody joins. */
  readonly lock: string;
}

/** Of one device: one hash tag, so that a script decides over all of them. */
export interface SessionKeys {
  /** Hash: id of the connection that holds it, since when, and the last takeovers. */
  readonly holder: string;
  /** Lists of times at which it was admitted: over the long window, and over the short one. */
  readonly flaps: string;
  readonly reconnects: string;
}

/** Every key and channel name of Holdfast. Parts that hold somebody's text are escaped. */
export class Keys {
  constructor(readonly prefix: string) {}

  partition(topic: string, partition: number): PartitionKeys {
    const base = `${this.prefix}{${scoped(topic)}.${partition}}:`;
    return {
      stream: `${base}s`,
      meta: `${base}m`,
      segments: `${base}g`,
      producers: `${base}p`,
      ids: [`${base}i0`, `${base}i1`, `${base}i2`],
      offsets: `${base}o`,
    };
  }

  group(topic: string, partition: number, group: string): GroupKeys {
    const base = `${this.prefix}{${scoped(topic)}.${partition}}:`;
    const name = scoped(group);
    return {
      state: `${base}c:${name}`,
      failures: `${base}f:${name}`,
      dead: `${base}d:${name}`,
      redriven: `${base}r:${name}`,
    };
  }

  groupMembers(topic: string, group: string): GroupMemberKeys {
    const base = `${this.prefix}group:{${scoped(topic, group)}}`;
    return { members: `${base}:members`, details: `${base}:details`, lock: `${base}:lock` };
  }

  /** Set: topics that have been used. */
  get topics(): string {
    return `${this.prefix}topics`;
  }

  /** Number of partitions of a topic: a string. */
  partitionCount(topic: string): string {
    return `${this.prefix}{${scoped(topic)}}:partitions`;
  }

  /** Sorted set: process id → end of its lease in Redis ms. */
  get processes(): string {
    return `${this.prefix}{pods}:processes`;
  }

  /** Hash: pod name → process id that holds it. */
  get podNames(): string {
    return `${this.prefix}{pods}:names`;
  }

  /** Taken for a short time by the pod that buries a dead process. */
  reaperClaim(processId: string): string {
    return `${this.prefix}{pods}:reaping:${processId}`;
  }

  /** Says for the recovery window that this process died, and that its resume records are good. */
  deathMark(processId: string): string {
    return `${this.prefix}dead:{${processId}}`;
  }

  inbox(processId: string): string {
    return `${this.inboxes}${processId}}`;
  }

  /** What an inbox's key begins with, for scripts; the process id and `}` follow. */
  get inboxes(): string {
    return `${this.prefix}inbox:{`;
  }

  resume(pid: string): string {
    return `${this.prefix}resume:{${scoped(pid)}}`;
  }

  /** What every key of a user's calls begins with. `scope` is `<tenant>/<user>`, each part escaped. */
  rpc(scope: string): string {
    return `${this.prefix}rpc:{${scope}}:`;
  }

  /** What a key begins with that says that a process was buried; the process id and `}` follow. */
  get rpcBuried(): string {
    return `${this.prefix}rpc-buried:{`;
  }

  /** Set: scopes in which this process has registered methods. */
  rpcHeld(processId: string): string {
    return `${this.prefix}rpc-held:{${processId}}`;
  }

  /** Hash: a user's sockets, each with the process that holds it. `scope` is `<tenant>/<user>`, each part escaped. */
  presence(scope: string): string {
    return `${this.prefix}presence:{${scope}}`;
  }

  /** Set: scopes of whose sockets this process holds some. */
  presenceHeld(processId: string): string {
    return `${this.prefix}presence:held:{${processId}}`;
  }

  /** `scope` is `<tenant>/<user>/<device>`, each part escaped. */
  session(scope: string): SessionKeys {
    const base = `${this.prefix}session:{${scope}}`;
    return { holder: base, flaps: `${base}:flaps`, reconnects: `${base}:reconnects` };
  }

  /** List: when tokens of that address that named that device proved nothing. */
  addressRefusals(address: string, claimedDevice: string): string {
    return `${this.prefix}refused:{${scoped(address, claimedDevice)}}`;
  }

  /** List: when that address connected. */
  addressConnects(address: string): string {
    return `${this.prefix}connects:{${scoped(address)}}`;
  }

  /** String: end of the cluster's warm-up, Redis ms. */
  get warmUp(): string {
    return `${this.prefix}{sessions}:warm-up`;
  }

  /** Pub/Sub channel of a room's ephemeral events. `room` is scoped by tenant already. */
  ephemeral(room: string): string {
    return `${this.prefix}eph:${room}`;
  }

  /** Process that carries between the log and the stream of `@socket.io/redis-streams-adapter`: a string. */
  get bridgeLease(): string {
    return `${this.prefix}{bridge}:lease`;
  }

  /** Hash: how far that has come, either way. */
  get bridgePlaces(): string {
    return `${this.prefix}{bridge}:places`;
  }

  /** Pub/Sub channel of the servers that stand on a bridge, per namespace: counted, and nothing is sent there. */
  bridgeChannel(namespace: string): string {
    return `${this.prefix}bridge#${namespace}`;
  }

  /** Pub/Sub channel on which a process hears itself at start. */
  selfTest(processId: string): string {
    return `${this.prefix}self:${processId}`;
  }
}
