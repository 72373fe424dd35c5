// A way to a node that stands still after so many bytes, so that a test can kill somebody in the middle of something however fast the
// machine is.

import { connect, createServer, type Server, type Socket } from "node:net";

export class StallingProxy {
  private readonly server: Server;
  private readonly port: () => number;
  private readonly sockets = new Set<Socket>();
  private readonly waiting = new Set<() => void>();
  /** Bytes of each connection that pass, from the node and to it. */
  private limits = { down: Number.POSITIVE_INFINITY, up: Number.POSITIVE_INFINITY };

  /** Of the node, each time a connection is made. */
  constructor(port: () => number) {
    this.port = port;
    this.server = createServer((client) => this.join(client));
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve) => this.server.listen(0, "127.0.0.1", resolve));
  }

  get url(): string {
    return `http://127.0.0.1:${(this.server.address() as { port: number }).port}`;
  }

  /** For connections from now on, and those that stand still. */
  allow({ down = Number.POSITIVE_INFINITY, up = Number.POSITIVE_INFINITY }: { down?: number; up?: number } = {}): void {
    this.limits = { down, up };
    for (const go of [...this.waiting]) go();
  }

  /** Ends all connections. */
  cut(): void {
    for (const socket of this.sockets) socket.destroy();
  }

  async close(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.server.close(resolve));
  }

  private join(client: Socket): void {
    const node = connect(this.port(), "127.0.0.1");
    this.pass(client, node, "up");
    this.pass(node, client, "down");
  }

  private pass(from: Socket, to: Socket, way: "down" | "up"): void {
    let passed = 0;
    this.sockets.add(from);
    const end = () => {
      this.sockets.delete(from);
      this.waiting.delete(go);
      to.destroy();
    };
    const go = () => {
      if (passed < this.limits[way]) from.resume();
    };
    from.on("data", (chunk: Buffer) => {
      passed += chunk.length;
      if (!to.write(chunk)) {
        from.pause();
        to.once("drain", go);
      }
      if (passed >= this.limits[way]) {
        from.pause();
        this.waiting.add(go);
      }
    });
    from.on("end", () => to.end());
    from.on("close", end);
    // `close` follows.
    from.on("error", () => undefined);
  }
}
