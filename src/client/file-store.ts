import { open, readFile, rename } from 'node:fs/promises';
import type { Store } from './stores.js';

/**
 * In a file, for Node. Each save writes `<path>.draft` beside it, flushes it to the disk and renames it, so that the text there
 * is always whole. The folder must exist; the file is readable by its owner only.
 */
export function fileStore(path: string): Store {
  // always the same one: what a kill leaves behind is overwritten by the next save
  const draft = `${path}.draft`;
  return {
    load: () =>
      readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT') return undefined;
        throw error;
      }),
    save: async (text) => {
      const file = await open(draft, 'w', 0o600);
      try {
        await file.writeFile(text);
        await file.datasync();
      } finally {
        await file.close();
      }
      await rename(draft, path);
    },
  };
}
