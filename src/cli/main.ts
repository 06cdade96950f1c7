#!/usr/bin/env node
import { failWith } from './output.js';
import { program } from './program.js';

program()
  .parseAsync()
  .catch((error: unknown) => failWith(error));
