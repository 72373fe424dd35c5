// The bare path's server: `node bare-server.entry.js <folder>` prints its port. The main thread hands the frames of a turn to the worker and
// sends what comes back; connections have no more state than whether they are subscribed.

import type { Socket } from "node:net";
import { Worker } from "node:worker_threads";
import { type WebSocket, WebSocketServer } from "ws";
import type { FromWorker, ToWorker } from "./bare-worker.entry.ts";

const worker = new Worker(new URL("./systems-bare-worker.entry.js", import.meta.url), { argv: process.argv.slice(2) });
const server = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });
const peers = new Map<number, { ws: WebSocket; socket: Socket }>();
const subscribers = new Set<number>();
let lastPeer = 0;
let gathered: ToWorker[] = [];

server.on("connection", (ws, { socket }) => {
  const peer = ++lastPeer;
  peers.set(peer, { ws, socket });
  ws.on("message", (data: Buffer) => {
    if (gathered.push({ peer, text: data.toString() }) === 1) setImmediate(flush);
  });
  ws.on("close", () => {
    peers.delete(peer);
    subscribers.delete(peer);
  });
});
server.on("listening", () => console.log((server.address() as { port: number }).port));

function flush(): void {
  worker.postMessage(gathered);
  gathered = [];
}

worker.on("message", ({ answers, events, joined }: FromWorker) => {
  for (const peer of joined) subscribers.add(peer);
  const corked = new Set<Socket>();
  const send = (peer: number, text: string) => {
    const one = peers.get(peer);
    if (one === undefined) return;
    if (!corked.has(one.socket)) {
      corked.add(one.socket);
      one.socket.cork();
    }
    one.ws.send(text);
  };
  for (const { peer, text } of answers) send(peer, text);
  for (const peer of subscribers) for (const text of events) send(peer, text);
  for (const socket of corked) socket.uncork();
});
