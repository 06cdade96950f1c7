export interface PollOptions {
  /** One deadline for all tries, in ms; default 5,000. */
  readonly withinMs?: number;
  /** What is waited for, as the end of "timed out waiting for …". */
  readonly what?: string;
}

const EVERY_MS = 20;

/**
 * Resolves once `holds` neither throws nor returns `false`; so a boolean and a block of `expect`s both work.
 *
 * A try that hangs (a paused process) ends with the deadline too.
 *
 * @throws when the deadline passes, with the last try's failure as `cause` and in the text
 */
export async function eventually(
  holds: () => boolean | void | Promise<boolean | void>,
  { withinMs = 5000, what = 'the condition' }: PollOptions = {},
): Promise<void> {
  const deadline = performance.now() + withinMs;
  let lastFailure: unknown = 'it was false';
  let timer: NodeJS.Timeout | undefined;
  const over = new Promise<'over'>((resolve) => {
    timer = setTimeout(resolve, withinMs, 'over');
  });
  try {
    while (performance.now() < deadline) {
      const outcome = await Promise.race([attempt(holds), over]);
      if (outcome === 'over') break;
      if (outcome.isHeld) return;
      lastFailure = outcome.failure;
      await Promise.race([new Promise((resolve) => setTimeout(resolve, EVERY_MS)), over]);
    }
  } finally {
    clearTimeout(timer);
  }
  const text = lastFailure instanceof Error ? lastFailure.message : String(lastFailure);
  throw new Error(`timed out after ${withinMs} ms waiting for ${what}; last: ${text}`, { cause: lastFailure });
}

async function attempt(holds: () => boolean | void | Promise<boolean | void>) {
  try {
    return (await holds()) === false
      ? { isHeld: false, failure: 'it was false' }
      : { isHeld: true, failure: undefined };
  } catch (failure) {
    return { isHeld: false, failure };
  }
}
