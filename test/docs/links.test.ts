import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { filesIn, ROOT, read } from './markdown.js';

const pages = [
  'README.md',
  'CHANGELOG.md',
  ...filesIn('docs', '.md').filter((path) => !path.startsWith('docs/evidence/')),
];

/** As GitHub makes them of headings. */
function anchorsOf(text: string): Set<string> {
  const headings = [...text.matchAll(/^#{1,6} (.+)$/gm)].map((match) => match[1] as string);
  return new Set(
    headings.map((heading) =>
      heading
        .toLowerCase()
        .replace(/[^\p{L}\p{N}\s_-]/gu, '')
        .replaceAll(' ', '-'),
    ),
  );
}

test.each(pages)('the links of %s lead somewhere', (page) => {
  const links = [...read(page).matchAll(/\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)/g)];
  const broken = links.flatMap(([, path, anchor]) => {
    const target = path === '' ? page : join(dirname(page), path as string);
    if (!existsSync(join(ROOT, target))) return [target];
    return anchor === undefined || anchorsOf(read(target)).has(anchor) ? [] : [`${target}#${anchor}`];
  });
  expect(broken).toEqual([]);
});

test.each(pages)('the npm commands of %s exist', (page) => {
  const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> };
  const named = [...read(page).matchAll(/npm (?:run ([\w:-]+)|(start|test)\b)/g)].map(
    (match) => match[1] ?? match[2] ?? '',
  );
  expect(named.filter((name) => scripts[name] === undefined)).toEqual([]);
});

test('every page can be reached from README.md', () => {
  const reached = new Set<string>();
  const visit = (page: string): void => {
    if (reached.has(page) || !page.endsWith('.md') || !existsSync(join(ROOT, page))) return;
    reached.add(page);
    for (const match of read(page).matchAll(/\]\((?!https?:)([^)\s#]+)/g))
      visit(join(dirname(page), match[1] as string));
  };
  visit('README.md');
  expect(pages.filter((page) => !reached.has(page))).toEqual([]);
});
