// The bare path: what is left of a durable bus when everything that makes it one is taken away. ws on the main thread, one worker, JSON
// frames, one write to a preallocated file and one fdatasync for all that came in the meantime, then the answers and the events. No
// leases, no cursors, no ids that are remembered, no checks, one topic. It is the yardstick, not a product: see bare-server.entry.ts.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { WebSocket } from "ws";
import { dataFolder } from "../../test/support/node-process.ts";
import { mainMicros, processMicros } from "../support/cpu.ts";
import type { Payload } from "../support/payload.ts";
import type { Settings } from "../support/settings.ts";
import type { Consumer, ConsumerOptions, Publisher, System } from "../support/system.ts";
import { gathering } from "./narthex.ts";
import { plainConsumer, plainPublisher } from "./plain.ts";

export async function startBare(set: Settings, speech: "batch" | "plain" = "batch"): Promise<System> {
  const folder = dataFolder();
  const program = new URL("./systems-bare-server.entry.js", import.meta.url).pathname;
  const child = spawn(process.execPath, [program, folder.path], { stdio: ["ignore", "pipe", "inherit"] });
  const exited = once(child, "exit");
  const [port] = (await once(child.stdout, "data")) as [Buffer];
  const url = `ws://127.0.0.1:${Number(port.toString())}`;
  const pid = child.pid as number;
  const abandon = () => {
    child.kill("SIGKILL");
    folder.remove();
  };
  process.once("exit", abandon);
  return {
    name: speech === "batch" ? "bare path" : "bare path (plain)",
    durability: "fsync before OK",
    publisher: (topic) => (speech === "plain" ? plainPublisher(url, topic) : batchPublisher(url, set.batch)),
    consumer: (options) => (speech === "plain" ? plainConsumer(url, options) : batchConsumer(url, options)),
    cpu: async () => ({ server: processMicros([pid]), front: mainMicros(pid) }),
    storedBytes: async () => undefined,
    async stop() {
      process.off("exit", abandon);
      child.kill("SIGKILL");
      await exited;
      folder.remove();
    },
  };
}

async function open(url: string): Promise<WebSocket> {
  const socket = new WebSocket(url, { perMessageDeflate: false });
  await once(socket, "open");
  return socket;
}

async function batchPublisher(url: string, batch: number): Promise<Publisher> {
  const socket = await open(url);
  const waiting = new Map<number, () => void>();
  let corr = 0;
  socket.on("message", (data: Buffer) => {
    const answer = JSON.parse(data.toString()) as { corr: number };
    waiting.get(answer.corr)?.();
    waiting.delete(answer.corr);
  });
  const send = (events: readonly Payload[]) =>
    new Promise<void>((resolve) => {
      waiting.set(++corr, resolve);
      socket.send(JSON.stringify({ op: "PUBLISH", corr, events }));
    });
  return gathering(batch, send, async () => socket.close());
}

async function batchConsumer(url: string, { onEvent }: ConsumerOptions): Promise<Consumer> {
  const socket = await open(url);
  let corr = 0;
  let confirmed = 0;
  let told: () => void = () => undefined;
  socket.on("message", (data: Buffer) => {
    const frame = JSON.parse(data.toString()) as { op: string; offset: number; events: Payload[] };
    if (frame.op !== "EVENTS") {
      confirmed++;
      if (confirmed === corr) told();
      return;
    }
    for (const event of frame.events) onEvent(event);
    socket.send(JSON.stringify({ op: "ACK", corr: ++corr, upTo: frame.offset + frame.events.length }));
  });
  socket.send(JSON.stringify({ op: "SUBSCRIBE", corr: ++corr }));
  await new Promise<void>((resolve) => {
    told = resolve;
  });
  return {
    settled: () =>
      new Promise((resolve) => {
        told = resolve;
        if (confirmed === corr) resolve();
      }),
    close: async () => socket.close(),
  };
}
