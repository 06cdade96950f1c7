import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { eventually } from '../harness/poll.js';

export interface RawOptions {
  readonly path?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sees each text frame first; true: it is not kept. */
  readonly onText?: (text: string) => boolean;
}

/** A WebSocket that speaks Engine.IO frame by frame, so that it can say what no client library would, or stop reading. */
export class RawClient implements AsyncDisposable {
  /** Text frames as they came, with Engine.IO's type in front. */
  readonly texts: string[] = [];
  binaries = 0;
  isClosed = false;
  readonly socket: Socket;
  #buffer: Buffer = Buffer.alloc(0);
  /** Came behind `#buffer`: a large frame is put together once, when all of it is there. */
  #chunks: Buffer[] = [];
  #held = 0;
  #wanted = 0;
  #isUpgraded = false;
  /** The HTTP answer's head. */
  head = '';

  readonly #onText: (text: string) => boolean;

  constructor(
    port: number,
    { path = '/socket.io/?EIO=4&transport=websocket', headers = {}, onText = () => false }: RawOptions = {},
  ) {
    this.#onText = onText;
    this.socket = connect(port, '127.0.0.1');
    this.socket.on('error', () => {});
    this.socket.on('close', () => {
      this.isClosed = true;
    });
    this.socket.on('data', (chunk) => this.#take(chunk));
    const lines = {
      host: `127.0.0.1:${port}`,
      upgrade: 'websocket',
      connection: 'Upgrade',
      'sec-websocket-version': '13',
      'sec-websocket-key': randomBytes(16).toString('base64'),
      ...headers,
    };
    const head = Object.entries(lines).map(([name, value]) => `${name}: ${value}\r\n`);
    this.socket.write(`GET ${path} HTTP/1.1\r\n${head.join('')}\r\n`);
  }

  /** Sends a text frame as it is: `40{}`, `42["publish",{}]`, `3`. */
  send(text: string): void {
    this.#frame(1, Buffer.from(text));
  }

  sendBinary(data: Buffer): void {
    this.#frame(2, data);
  }

  /** The first text frame that matches, from `after` frames on. */
  async next(pattern: RegExp, { after = 0, withinMs = 10_000 } = {}): Promise<string> {
    let found: string | undefined;
    const look = (): boolean => {
      found = this.texts.slice(after).find((text) => pattern.test(text));
      return found !== undefined;
    };
    await eventually(look, { withinMs, what: `a frame like ${pattern}; got ${this.texts.slice(-3).join(' | ')}` });
    return found as string;
  }

  /** Sends CONNECT and resolves with the answer's data: `{sid, pid}`, or the refusal. */
  async open(
    auth: object,
    withinMs = 10_000,
  ): Promise<{ sid?: string; pid?: string; message?: string; data?: { code: string } }> {
    await this.next(/^0/, { withinMs });
    const after = this.texts.length;
    this.send(`40${JSON.stringify(auth)}`);
    return JSON.parse((await this.next(/^4[04]/, { after, withinMs })).slice(2));
  }

  /** An event with an ack; its first argument. */
  async ask(id: number, event: string, payload: unknown): Promise<Record<string, unknown>> {
    this.send(`42${id}${JSON.stringify([event, payload])}`);
    const text = await this.next(new RegExp(`^43${id}\\[`));
    return JSON.parse(text.slice(text.indexOf('[')))[0];
  }

  async closed(withinMs = 10_000): Promise<void> {
    await eventually(() => this.isClosed, { withinMs, what: 'a raw client to be closed' });
  }

  async stop(): Promise<void> {
    if (this.socket.closed) return;
    const gone = once(this.socket, 'close');
    this.socket.resetAndDestroy();
    await gone;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  #frame(opcode: number, data: Buffer): void {
    const mask = randomBytes(4);
    const body = Buffer.from(data);
    for (let i = 0; i < body.length; i++) body[i] = (body[i] as number) ^ (mask[i & 3] as number);
    const head = Buffer.alloc(data.length < 126 ? 2 : data.length < 65_536 ? 4 : 10);
    head[0] = 0x80 | opcode;
    if (head.length === 2) head[1] = 0x80 | data.length;
    else if (head.length === 4) {
      head[1] = 0x80 | 126;
      head.writeUInt16BE(data.length, 2);
    } else {
      head[1] = 0x80 | 127;
      head.writeBigUInt64BE(BigInt(data.length), 2);
    }
    this.socket.write(Buffer.concat([head, mask, body]));
  }

  #take(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#held += chunk.length;
    if (this.#held < this.#wanted) return;
    this.#buffer = Buffer.concat([this.#buffer, ...this.#chunks]);
    this.#chunks = [];
    this.#parse();
    this.#held = this.#buffer.length;
  }

  #parse(): void {
    this.#wanted = 0;
    if (!this.#isUpgraded) {
      const end = this.#buffer.indexOf('\r\n\r\n');
      if (end < 0) return;
      this.head = this.#buffer.toString('latin1', 0, end);
      if (!this.head.startsWith('HTTP/1.1 101')) return;
      this.#isUpgraded = true;
      this.#buffer = this.#buffer.subarray(end + 4);
    }
    for (;;) {
      const [first, second] = this.#buffer;
      if (first === undefined || second === undefined) return;
      const short = second & 127;
      const size = short === 126 ? 2 : short === 127 ? 8 : 0;
      if (this.#buffer.length < 2 + size) return;
      const length =
        size === 0 ? short : size === 2 ? this.#buffer.readUInt16BE(2) : Number(this.#buffer.readBigUInt64BE(2));
      if (this.#buffer.length < 2 + size + length) {
        this.#wanted = 2 + size + length;
        return;
      }
      const body = this.#buffer.subarray(2 + size, 2 + size + length);
      this.#buffer = this.#buffer.subarray(2 + size + length);
      if ((first & 15) === 1) this.#text(body.toString());
      else if ((first & 15) === 2) this.binaries++;
      else if ((first & 15) === 8) this.socket.end();
    }
  }

  #text(text: string): void {
    if (!this.#onText(text)) this.texts.push(text);
    if (text === '2') this.send('3');
  }
}
