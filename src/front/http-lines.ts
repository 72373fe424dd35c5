// A client may send the next request before it has the answer to the last one. The answers must come in order, so requests of one
// connection are handled one after the other: what waits has cost nothing yet, and goes with its socket. Handled all at once, some
// thousand small requests in one packet would each hold their answer until it is their turn.

import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";

type Handle = (req: IncomingMessage, res: ServerResponse) => void;

interface Line {
  readonly waiting: { readonly req: IncomingMessage; readonly res: ServerResponse }[];
  busy: boolean;
}

export class HttpLines {
  private readonly handle: Handle;
  private readonly waitingMax: number;
  private readonly lines = new WeakMap<Socket, Line>();

  constructor(handle: Handle, waitingMax: number) {
    this.handle = handle;
    this.waitingMax = waitingMax;
  }

  take(req: IncomingMessage, res: ServerResponse): void {
    const { socket } = req;
    let line = this.lines.get(socket);
    if (line === undefined) {
      line = { waiting: [], busy: false };
      this.lines.set(socket, line);
    }
    // What was in the same packet as the one that cut the connection.
    if (socket.destroyed) return;
    if (!line.busy) this.begin(line, req, res);
    else if (line.waiting.length < this.waitingMax) line.waiting.push({ req, res });
    // A refusal would have to wait for its turn as well.
    else socket.destroy();
  }

  private begin(line: Line, req: IncomingMessage, res: ServerResponse): void {
    line.busy = true;
    res.once("close", () => {
      line.busy = false;
      const next = line.waiting.shift();
      if (next !== undefined && !req.socket.destroyed) this.begin(line, next.req, next.res);
    });
    this.handle(req, res);
  }
}
