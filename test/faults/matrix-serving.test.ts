import { SERVING, testGroups } from './matrix.js';

testGroups(SERVING, 'short');
