/** The relay's image, built from this tree before the tests. */
export const IMAGE = 'holdfast:test';
