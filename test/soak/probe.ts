// A look into each thread of the node, from a module that Node loads into all of them before the node's own (`--import`): the heap, what
// lives of it, and what keeps the event loop busy. /metrics does not tell these, and a heap that is only looked at shows how lazy the
// collector is rather than what is kept; so now and then the probe has everything collected and says what is left.
//
// It can also leak, so that a run can show that a leak is found: `heap:1024` keeps so many bytes a second, `buffers:1024` keeps them outside
// of the heap, `files:0.2` opens so many files a second, `timers:5` starts so many timers a second that never end and each do some work.

import { closeSync, openSync, readSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

export interface ProbeLine {
  /** `main`, or `worker-` and the number of the thread. */
  readonly thread: string;
  readonly at: number;
  readonly heap: number;
  /** After a full collection; not in every line. */
  readonly live?: number;
  /** Outside of the heap, what buffers have included; after a full collection too. */
  readonly external?: number;
  readonly timers: number;
}

export interface ProbeOptions {
  readonly sampleMs: number;
  readonly collectMs: number;
  readonly leak?: string | undefined;
}

const source = `
import { appendFileSync, openSync } from "node:fs";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { isMainThread, threadId } from "node:worker_threads";

const { sampleMs, collectMs, leak, path } = OPTIONS;
const thread = isMainThread ? "main" : "worker-" + threadId;
setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc");
const look = () => {
  const { heapUsed, external } = process.memoryUsage();
  const timers = process.getActiveResourcesInfo().filter((name) => name === "Timeout").length;
  return { thread, at: Date.now(), heap: heapUsed, external, timers };
};
const say = (line) => appendFileSync(path, JSON.stringify(line) + "\\n");
setInterval(() => {
  const { external, ...line } = look();
  say(line);
}, sampleMs).unref();
setInterval(() => {
  collect();
  // What the first one found to be garbage lets go of what it held outside of the heap.
  setImmediate(() => {
    collect();
    setImmediate(() => {
      const { heap, ...line } = look();
      say({ ...line, heap, live: heap });
    });
  });
}, collectMs).unref();

const [what, amount] = (leak ?? "").split(":");
const kept = [];
const eachMs = 100;
let due = 0;
if (what !== "" && (isMainThread === (what === "files"))) setInterval(() => {
  due += (Number(amount) * eachMs) / 1000;
  const whole = Math.floor(due);
  due -= whole;
  if (what === "heap" && whole > 0) kept.push(Array.from({ length: Math.ceil(whole / 8) }, (_, i) => i + 0.5));
  if (what === "buffers" && whole > 0) kept.push(Buffer.alloc(whole, 1));
  if (what === "files") for (let i = 0; i < whole; i++) openSync("/dev/null");
  if (what === "timers") for (let i = 0; i < whole; i++) setInterval(() => {
    for (let work = 0, sum = 0; work < 20000; work++) sum += Math.sqrt(work);
  }, 50);
}, eachMs).unref();
`;

export class Probe {
  private readonly path: string;
  private readonly module: string;
  private at = 0;
  private rest = "";

  constructor(folder: string, options: ProbeOptions) {
    this.path = join(folder, "probe.ndjson");
    this.module = join(folder, "probe.mjs");
    writeFileSync(this.path, "");
    writeFileSync(this.module, source.replace("OPTIONS", JSON.stringify({ ...options, path: this.path })));
  }

  /** For the environment of the node. */
  get nodeOptions(): string {
    return `--import=${pathToFileURL(this.module)}`;
  }

  /** What the threads have said since the last time. */
  take(): ProbeLine[] {
    const file = openSync(this.path, "r");
    const chunk = Buffer.alloc(256 * 1024);
    try {
      for (let read = -1; read !== 0; ) {
        read = readSync(file, chunk, 0, chunk.length, this.at);
        this.at += read;
        this.rest += chunk.toString("latin1", 0, read);
      }
    } finally {
      closeSync(file);
    }
    const lines = this.rest.split("\n");
    this.rest = lines.pop() ?? "";
    return lines.map((line) => JSON.parse(line) as ProbeLine);
  }
}
