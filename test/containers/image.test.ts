import { getContainerRuntimeClient } from 'testcontainers';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { IMAGE } from './image.js';
import { type RelayContainer, Stack } from './stack.js';

/** Measured: 314 MB, of which 276 are the base image's. */
const MAX_MB = 350;

let stack: Stack;
let relay: RelayContainer;
beforeAll(async () => {
  stack = await Stack.start();
  relay = await stack.startRelay('relay-0');
});
afterAll(() => stack[Symbol.asyncDispose]());

test(`the image is smaller than ${MAX_MB} MB`, async () => {
  const { container } = await getContainerRuntimeClient();
  const { Size } = await container.dockerode.getImage(IMAGE).inspect();
  expect(Size / 1e6).toBeLessThan(MAX_MB);
});

test('the relay runs as another user than root, who owns none of its files', async () => {
  expect(await relay.exec('id', '-u')).toBe('1000');
  expect(await relay.exec('find', '/app', '-user', '1000')).toBe('');
  expect(await relay.exec('cat', '/proc/1/comm')).toMatch(/node|MainThread/);
});

test('neither sources nor development dependencies are in the image', async () => {
  expect((await relay.exec('ls', '-A', '/app')).split('\n')).toEqual([
    'LICENSE',
    'dist',
    'migrations',
    'node_modules',
    'package.json',
  ]);
  await expect(relay.exec('ls', 'node_modules/typescript')).rejects.toThrow('No such file');
});

test('docker stop with its usual 10 s is enough for a drain of 3 s', async () => {
  expect(await relay.stop(10)).toBe(0);
});
