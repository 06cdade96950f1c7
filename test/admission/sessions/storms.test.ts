import { testStorms } from './storms.js';

testStorms(0.2);
