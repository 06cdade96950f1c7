import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { readEvent } from './event.mjs';

const FRAME = { text: 1, close: 8 };
const code = (character) => character.charCodeAt(0);
const ENGINE = { open: code('0'), ping: code('2'), message: code('4') };
const PACKET = { connect: code('0'), event: code('2'), ack: code('3'), connectError: code('4') };

/**
 * A Socket.IO client of one TCP socket that looks at frames where they lie: a stock client costs more than the server that is
 * measured, on the same cores. It answers pings, and keeps what a stock client would recover with.
 */
export class RawClient {
  pid;
  isRecovered = false;
  isClosed = false;
  #socket;
  #rest;
  #isUpgraded = false;
  #auth;
  #onEvent;
  #onRequest;
  #lastEvent;
  #opened;
  #failed;
  /** Ack id → who waits for it. */
  #asked = new Map();
  #asks = 0;

  /** Resolves with CONNECT, after which the server has it in its rooms. */
  ready = new Promise((resolve, reject) => {
    this.#opened = resolve;
    this.#failed = reject;
  });

  /**
   * @param onEvent gets what `readEvent` reads
   * @param onRequest gets what `rpc-request` brings; what it returns is the answer
   */
  constructor(port, auth, onEvent, onRequest) {
    const openedAt = performance.now();
    this.#auth = auth;
    this.#onEvent = onEvent;
    this.#onRequest = onRequest;
    this.#socket = connect({ port, host: '127.0.0.1', noDelay: true });
    this.#socket.on('data', (chunk) => this.#take(chunk));
    this.#socket.on('error', (error) => this.#failed(error));
    this.#socket.on('close', () => {
      this.isClosed = true;
      const afterMs = Math.round(performance.now() - openedAt);
      this.#failed(new Error(`closed by the server before CONNECT, after ${afterMs} ms`));
    });
    const key = randomBytes(16).toString('base64');
    this.#socket.write(
      `GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${key}\r\n\r\n`,
    );
  }

  /** The string in last place of the newest event, which is what Socket.IO takes for the position. */
  get offset() {
    if (!this.#lastEvent) return this.#auth.offset;
    const last = JSON.parse(this.#lastEvent.toString('utf8', 2)).at(-1);
    return typeof last === 'string' ? last : this.#auth.offset;
  }

  /** Asks the relay for a room. */
  subscribe(room) {
    return this.ask('subscribe', { room });
  }

  /** A request of the relay's protocol; the first argument of its ack. */
  ask(event, payload) {
    const id = this.#asks++;
    this.#send(`42${id}${JSON.stringify([event, payload])}`);
    return new Promise((resolve) => this.#asked.set(id, resolve));
  }

  /** As a cut cable: the server sees the socket end, without a word of Socket.IO's. */
  cut() {
    this.#socket.destroy();
  }

  #send(text) {
    const body = Buffer.from(text);
    const head = Buffer.alloc(body.length < 126 ? 6 : 8);
    head[0] = 0x80 | FRAME.text;
    head[1] = 0x80 | Math.min(body.length, 126);
    if (body.length >= 126) head.writeUInt16BE(body.length, 2);
    // a mask of zeros leaves the body as it is
    this.#socket.write(Buffer.concat([head, body]));
  }

  #take(chunk) {
    let data = this.#rest ? Buffer.concat([this.#rest, chunk]) : chunk;
    this.#rest = undefined;
    if (!this.#isUpgraded) {
      const end = data.indexOf('\r\n\r\n');
      this.#isUpgraded = end >= 0;
      if (end < 0) {
        this.#rest = data;
        return;
      }
      data = data.subarray(end + 4);
    }
    const before = this.#lastEvent;
    let at = 0;
    for (;;) {
      if (data.length - at < 2) break;
      const short = data[at + 1] & 127;
      const head = short === 126 ? 4 : short === 127 ? 10 : 2;
      if (data.length - at < head) break;
      const length = short === 126 ? data.readUInt16BE(at + 2) : short === 127 ? data.readUIntBE(at + 4, 6) : short;
      if (data.length - at < head + length) break;
      this.#frame(data[at] & 15, data, at + head, at + head + length);
      at += head + length;
    }
    if (at < data.length) this.#rest = Buffer.from(data.subarray(at));
    // a view would keep the whole chunk
    if (this.#lastEvent !== before) this.#lastEvent = Buffer.from(this.#lastEvent);
  }

  #frame(opcode, data, start, end) {
    if (opcode === FRAME.close) this.#socket.destroy();
    if (opcode !== FRAME.text) return;
    const type = data[start];
    if (type === ENGINE.message) this.#packet(data, start, end);
    else if (type === ENGINE.ping) this.#send('3');
    else if (type === ENGINE.open) this.#send(`40${JSON.stringify(this.#auth)}`);
  }

  #packet(data, start, end) {
    const type = data[start + 1];
    if (type === PACKET.event) {
      this.#lastEvent = data.subarray(start, end);
      const event = readEvent(data, start, end);
      if (event) this.#onEvent(event);
      else if (this.#onRequest) this.#request(data.toString('utf8', start + 2, end));
    } else if (type === PACKET.connect) this.#connected(data.toString('utf8', start + 2, end));
    else if (type === PACKET.ack) this.#answered(data.toString('utf8', start + 2, end));
    else if (type === PACKET.connectError) this.#failed(new Error(data.toString('utf8', start, end)));
  }

  #answered(text) {
    const id = Number.parseInt(text, 10);
    const resolve = this.#asked.get(id);
    this.#asked.delete(id);
    resolve(JSON.parse(text.slice(text.indexOf('[')))[0]);
  }

  #request(text) {
    const begin = text.indexOf('[');
    const [event, payload] = JSON.parse(text.slice(begin));
    if (event === 'rpc-request') this.#send(`43${text.slice(0, begin)}${JSON.stringify([this.#onRequest(payload)])}`);
  }

  #connected(text) {
    const { pid } = JSON.parse(text);
    this.isRecovered = pid !== undefined && pid === this.#auth.pid;
    this.pid = pid;
    this.#opened();
  }
}
