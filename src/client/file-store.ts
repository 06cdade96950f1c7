import { randomBytes } from 'node:crypto';
import { open, readFile, rename, rm } from 'node:fs/promises';
import type { Store } from './stores.js';

/**
 * In a file, for Node. Each save writes a file beside it, flushes it to the disk and renames it, so that the text there is
 * always whole. The folder must exist; the file is readable by its owner only.
 */
export function fileStore(path: string): Store {
  return {
    load: () =>
      readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT') return undefined;
        throw error;
      }),
    save: async (text) => {
      const draft = `${path}.${randomBytes(4).toString('hex')}`;
      try {
        const file = await open(draft, 'wx', 0o600);
        try {
          await file.writeFile(text);
          await file.datasync();
        } finally {
          await file.close();
        }
        await rename(draft, path);
      } catch (error) {
        await rm(draft, { force: true });
        throw error;
      }
    },
  };
}
