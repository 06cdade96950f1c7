import { DATA, testGroups } from './matrix.js';

testGroups(DATA, 'short');
