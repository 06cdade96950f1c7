import { testStorms } from './storms.js';

testStorms(1);
