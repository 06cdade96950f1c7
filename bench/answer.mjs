/** Answers what `Worker.ask` sends, by a table of command → function; ends with its parent. */
export function answer(commands) {
  process.on('message', async ({ id, command, argument }) => {
    try {
      process.send({ id, result: await commands[command](argument) });
    } catch (error) {
      process.send({ id, error: error.stack.replace(/^Error: /, '') });
    }
  });
  process.on('disconnect', () => process.exit());
}

/** µs on the clock that all processes of a machine share. */
export const nowUs = () => Math.round(Number(process.hrtime.bigint()) / 1000);
