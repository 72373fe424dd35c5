// A client process that opens so many connections, is let in on each, and then does nothing.

import { WebSocket } from "ws";
import { within } from "../../test/support/deadline.ts";
import { answerWith } from "./child.ts";

export interface IdleAsk {
  readonly url: string;
  readonly count: number;
}

export interface IdleAnswer {
  readonly opened: number;
  /** Why no more of them. */
  readonly limit?: string;
}

const atOnce = 100;
const openMs = 30_000;
/** So that nothing collects them. */
const sockets: WebSocket[] = [];

answerWith<IdleAsk, IdleAnswer>(async ({ url, count }) => {
  const before = sockets.length;
  for (let left = count; left > 0; left -= atOnce) {
    const opening = Array.from({ length: Math.min(atOnce, left) }, () => open(url));
    for (const outcome of await within(openMs, "more connections", Promise.allSettled(opening))) {
      if (outcome.status === "fulfilled") sockets.push(outcome.value);
      else return { opened: sockets.length - before, limit: String(outcome.reason) };
    }
  }
  return { opened: sockets.length - before };
});

function open(url: string): Promise<WebSocket> {
  const socket = new WebSocket(url, { perMessageDeflate: false });
  return new Promise((resolve, reject) => {
    socket.on("error", reject);
    socket.on("close", (code, reason) => reject(new Error(`closed with ${code} ${reason}`)));
    socket.on("open", () => socket.send('{"op":"AUTH"}'));
    socket.on("message", () => resolve(socket));
  });
}
