import { GenericContainer, Network, type StartedNetwork, Wait } from 'testcontainers';
import { freePort } from '../harness/free-port.js';
import { TEST_API_KEY } from '../harness/pod.js';
import { TEST_JWT_SECRET } from '../harness/token.js';
import { Container } from './container.js';
import { IMAGE } from './image.js';

const REDIS_IMAGE = 'redis:7-bookworm';
const READY_MS = 60_000;
/** Short, for the tests' sake; the image's default is the relay's: 30 s. */
export const DRAIN_MS = 3000;

/** A relay in its own image. A name is stable over restarts, as a StatefulSet's pod has it. */
export class RelayContainer extends Container {
  constructor(
    name: string,
    started: ConstructorParameters<typeof Container>[1],
    private readonly port: number,
  ) {
    super(name, started);
  }

  get url(): string {
    return `http://${this.host}:${this.port}`;
  }
}

/** Redis and relays in a network of their own. */
export class Stack implements AsyncDisposable {
  readonly #relays: RelayContainer[] = [];

  private constructor(
    private readonly network: StartedNetwork,
    readonly redis: Container,
  ) {}

  static async start(): Promise<Stack> {
    const network = await new Network().start();
    try {
      return new Stack(network, await startRedis(network));
    } catch (error) {
      await network.stop();
      throw error;
    }
  }

  async startRelay(name: string): Promise<RelayContainer> {
    // a mapped port that the engine chose would be another one after a restart
    const [port, opsPort] = [await freePort(), await freePort()];
    const started = await new GenericContainer(IMAGE)
      .withNetwork(this.network)
      .withExposedPorts({ container: 3000, host: port }, { container: 3001, host: opsPort })
      .withEnvironment({
        REDIS_URL: 'redis://redis:6379',
        HOLDFAST_POD: name,
        HOLDFAST_JWT_SECRET: TEST_JWT_SECRET,
        HOLDFAST_API_KEYS: TEST_API_KEY,
        HOLDFAST_DRAIN_MS: String(DRAIN_MS),
      })
      .withDroppedCapabilities('ALL')
      .withWaitStrategy(Wait.forHttp('/_readiness', 3001).forStatusCode(200).withStartupTimeout(READY_MS))
      .start();
    const relay = new RelayContainer(name, started, port);
    this.#relays.push(relay);
    return relay;
  }

  /** Of all containers, for an error's text. */
  async logs(): Promise<string> {
    return (await Promise.all([...this.#relays, this.redis].map((container) => container.logs()))).join('\n');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const container of [...this.#relays, this.redis]) await container[Symbol.asyncDispose]();
    await this.network.stop();
  }
}

/** With every write on disk before its answer: what was accepted outlives a SIGKILL, whatever the disk is busy with. */
async function startRedis(network: StartedNetwork): Promise<Container> {
  const started = await new GenericContainer(REDIS_IMAGE)
    .withNetwork(network)
    .withNetworkAliases('redis')
    .withCommand(['redis-server', '--appendonly', 'yes', '--appendfsync', 'always', '--save', ''])
    .withWaitStrategy(Wait.forSuccessfulCommand('redis-cli ping | grep -q PONG').withStartupTimeout(READY_MS))
    .start();
  return new Container('redis', started);
}
