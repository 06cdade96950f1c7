/**
 * SQLSTATEs of a server that answers and will serve in a while: it starts, stops, recovers or is a standby (57P0x,
 * 25006), has no connection, memory or disk left (53xxx), somebody is in the way (55006, 55P03, 40xxx) or ended our
 * statement (57014), or PgBouncer has no server (08xxx).
 */
export const REFUSES_FOR_NOW = /^(57P0[1-5]|57014|25006|53\w{3}|55006|55P03|40\w{3}|08\w{3})$/;
