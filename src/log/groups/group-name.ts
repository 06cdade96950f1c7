/**
 * Redis names of consumer groups: `pod:<name>` is a relay, `app:<name>` a back end. People may leave `app:` out; a back end
 * whose own name begins with `pod:` is `app:pod:…`.
 */
export function redisNameOf(group: string): string {
  return isOfPod(group) || isOfBackEnd(group) ? group : `app:${group}`;
}

export function isOfPod(redisName: string): boolean {
  return redisName.startsWith('pod:');
}

export function isOfBackEnd(redisName: string): boolean {
  return redisName.startsWith('app:');
}

/** The name that a back end gave its group, by which its keys are called. */
export function ownNameOf(redisName: string): string {
  return redisName.replace(/^app:/, '');
}
