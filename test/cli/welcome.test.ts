import { expect, it } from 'vitest';
import { welcome } from '../../src/cli/welcome.js';

const OWN = { ownSecret: 'made-here-of-at-least-32-characters', ownApiKey: 'key-made-here' };
const base = { port: 3000, opsPort: 3001, socketPath: '/socket.io', canSign: true };

it('a newcomer gets a token and a key that were made here', async () => {
  const text = await welcome({ ...base, ...OWN });
  expect(text).toMatch(/everywhere:\neyJ[\w.-]+\n/);
  expect(text).toMatch(/const token = 'eyJ/);
  expect(text).toContain('Bearer key-made-here');
});

it('a secret that the operator configured signs nothing that is printed', async () => {
  const text = await welcome({ ...base, ownApiKey: OWN.ownApiKey });
  expect(text).not.toContain('eyJ');
  expect(text).toContain("A token to try: holdfast token --user me --subscribe '*' --publish '*'\n");
  expect(text).toContain('Bearer key-made-here');
});

it('with an issuer and API keys of the operator there is nothing to print but where they go', async () => {
  const text = await welcome({ ...base, canSign: false });
  expect(text).not.toContain('eyJ');
  expect(text).toContain("const token = '<a token of your issuer>'");
  expect(text).toContain('Bearer <one of HOLDFAST_API_KEYS>');
});
