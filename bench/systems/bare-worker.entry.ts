// The bare path's worker. What comes while an fdatasync is under way waits for the next one, so one of them covers many frames.

import { closeSync, fdatasync, openSync, writeSync } from "node:fs";
import { join } from "node:path";
import { parentPort } from "node:worker_threads";

export interface ToWorker {
  readonly peer: number;
  readonly text: string;
}

export interface FromWorker {
  readonly answers: readonly ToWorker[];
  /** Frames for every subscriber. */
  readonly events: readonly string[];
  readonly joined: readonly number[];
}

interface Frame {
  readonly op: "AUTH" | "PUBLISH" | "SUBSCRIBE" | "ACK";
  readonly corr: number;
  readonly events?: readonly unknown[];
  readonly topic?: string;
  readonly group?: string;
  readonly payload?: unknown;
}

const fileBytes = 64 * 1024 * 1024;
const fd = openSync(join(process.argv[2], "bare.log"), "w+");
for (let at = 0; at < fileBytes; at += 1024 * 1024) writeSync(fd, new Uint8Array(1024 * 1024), 0, 1024 * 1024, at);
process.on("exit", () => closeSync(fd));

let writeAt = 0;
let offset = 0;
let waiting: ToWorker[] = [];
let syncing = false;

parentPort?.on("message", (frames: ToWorker[]) => {
  waiting = waiting.length === 0 ? frames : [...waiting, ...frames];
  if (!syncing) commit();
});

function commit(): void {
  const frames = waiting;
  waiting = [];
  const answers: ToWorker[] = [];
  const events: string[] = [];
  const joined: number[] = [];
  const lines: string[] = [];
  for (const { peer, text } of frames) {
    const { op, corr, ...frame } = JSON.parse(text) as Frame;
    if (op !== "PUBLISH") {
      if (op === "SUBSCRIBE") joined.push(peer);
      answers.push({ peer, text: JSON.stringify({ op: "OK", corr }) });
    } else if (frame.events !== undefined) {
      const payloads = JSON.stringify(frame.events);
      lines.push(payloads);
      answers.push({ peer, text: `{"op":"OK","corr":${corr},"offset":${offset}}` });
      events.push(`{"op":"EVENTS","offset":${offset},"events":${payloads}}`);
      offset += frame.events.length;
    } else {
      const payload = JSON.stringify(frame.payload);
      lines.push(payload);
      const ts = Date.now();
      const { topic } = frame;
      answers.push({ peer, text: JSON.stringify({ op: "OK", corr, id: String(offset), ts, partition: 0, offset }) });
      const head = JSON.stringify({ id: String(offset), ts, topic, partition: 0, offset });
      events.push(`{"op":"EVENT","topic":${JSON.stringify(topic)},"event":${head.slice(0, -1)},"payload":${payload}}}`);
      offset++;
    }
  }
  const done = () => parentPort?.postMessage({ answers, events, joined } satisfies FromWorker);
  if (lines.length === 0) {
    done();
    return;
  }
  const bytes = Buffer.from(`${lines.join("\n")}\n`);
  if (writeAt + bytes.length > fileBytes) writeAt = 0;
  writeSync(fd, bytes, 0, bytes.length, writeAt);
  writeAt += bytes.length;
  syncing = true;
  fdatasync(fd, (error) => {
    if (error !== null) throw error;
    syncing = false;
    done();
    if (waiting.length > 0) commit();
  });
}
