// What each thread of the node holds, once everything is collected that nobody holds: from a module that Node loads into every thread
// before the node's own (`--import`). The size of the process says little of it: a worker's heap grows for a long while before its
// collector finds it worth a look.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { eventually } from "../support/deadline.ts";

/** By thread: `main`, or `worker-` and its number. Bytes on its heap and outside of it. */
export type Held = ReadonlyMap<string, number>;

const source = `
import { createHook } from "node:async_hooks";
import { appendFileSync } from "node:fs";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { BroadcastChannel, isMainThread, threadId } from "node:worker_threads";

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc");
const thread = isMainThread ? "main" : "worker-" + threadId;
const say = (line) => appendFileSync(PATH, JSON.stringify({ thread, ...line }) + "\\n");
const look = (name) => {
  collect();
  // What the first one found to be garbage lets go of what it held outside of the heap.
  setImmediate(() => {
    collect();
    setImmediate(() => {
      const { heapUsed, external } = process.memoryUsage();
      say({ look: name, held: heapUsed + external, timers: timers.size });
    });
  });
};
const timers = new Set();
if (COUNTS_TIMERS) {
  createHook({
    init: (id, type) => void (type === "Timeout" && timers.add(id)),
    destroy: (id) => void timers.delete(id),
  }).enable();
}
const channel = new BroadcastChannel("look");
channel.onmessage = ({ data }) => look(data);
channel.unref();
let looks = 0;
if (isMainThread) process.on("SIGUSR2", () => {
  channel.postMessage(++looks);
  look(looks);
});
say({ look: 0, held: 0, timers: 0 });
`;

interface Line {
  readonly thread: string;
  /** The how many-th; 0: it has just begun. */
  readonly look: number;
  readonly held: number;
  /** Set and not over yet, those of Node itself included. */
  readonly timers: number;
}

export class Threads {
  private readonly path: string;
  private readonly module: string;
  private looks = 0;

  /** Counting timers costs a little of each promise. */
  constructor(folder: string, { timers = false } = {}) {
    this.path = join(folder, "looks.ndjson");
    this.module = join(folder, "looks.mjs");
    writeFileSync(this.path, "");
    writeFileSync(
      this.module,
      source.replace("PATH", JSON.stringify(this.path)).replace("COUNTS_TIMERS", String(timers)),
    );
  }

  /** For the environment of the node. */
  get nodeOptions(): string {
    return `--import=${pathToFileURL(this.module)}`;
  }

  /** Collects in every thread of this process. One after the other: no look is asked for before the last one is over. */
  async look(pid: number): Promise<Held> {
    const look = ++this.looks;
    process.kill(pid, "SIGUSR2");
    return eventually(20_000, "every thread says what it holds", () => {
      const lines = this.lines();
      const held = new Map(lines.filter((line) => line.look === look).map((line) => [line.thread, line.held]));
      return held.size === new Set(lines.map(({ thread }) => thread)).size && held;
    });
  }

  /** That there were at the last look. */
  get timers(): number {
    return this.lines().reduce((sum, line) => (line.look === this.looks ? sum + line.timers : sum), 0);
  }

  private lines(): Line[] {
    const whole = readFileSync(this.path, "utf8").split("\n").slice(0, -1);
    return whole.map((line) => JSON.parse(line) as Line);
  }
}
