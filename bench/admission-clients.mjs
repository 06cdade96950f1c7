// Clients of one side, each with a token of its own: no two are one person or one device. Commands come from admission-side.ts.
import { SignJWT } from 'jose';
import { answer, nowUs } from './answer.mjs';
import { RawClient } from './raw-client.mjs';

const TTL_S = 3600;

const { secret, tenant, hasDevices } = JSON.parse(process.argv[2]);
const key = new TextEncoder().encode(secret);
let tokens = [];
let clients = [];

const tokenOf = (n) =>
  new SignJWT({ sub: `user-${n}`, tenant, ...(hasDevices && { device: `device-${n}` }) })
    .setProtectedHeader({ alg: 'HS256' })
    .setIssuedAt()
    .setExpirationTime(Math.floor(Date.now() / 1000) + TTL_S)
    .sign(key);

const present = () => clients.filter(({ isClosed }) => !isClosed).length;

answer({
  /** Tokens of so many, from the n-th on: signing them is no part of a connect. */
  async prepare({ from, count }) {
    tokens = await Promise.all(Array.from({ length: count }, (_, i) => tokenOf(from + i)));
  },

  /** All that were prepared; one that is refused ends it. */
  async connect({ port, concurrency }) {
    const startedAt = nowUs();
    const lane = async () => {
      for (let token = tokens.pop(); token; token = tokens.pop()) {
        const client = new RawClient(port, { token }, () => {});
        await client.ready;
        clients.push(client);
      }
    };
    await Promise.all(Array.from({ length: Math.min(concurrency, tokens.length) }, lane));
    return nowUs() - startedAt;
  },

  /** How many are still there. */
  present,

  /** Everybody who came must still be there: one who was sent away was no connect. */
  leave() {
    const gone = clients.length - present();
    if (gone > 0) throw new Error(`${gone} of ${clients.length} clients were closed by the server`);
    for (const client of clients) client.cut();
    clients = [];
  },
});
