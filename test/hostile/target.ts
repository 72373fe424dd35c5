// The node that is attacked, as an operator sees it: memory, file descriptors, and everything it has written.

import { readdirSync, readFileSync } from "node:fs";
import { codes } from "../../src/protocol/failure.ts";
import { eventually } from "../support/deadline.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";
import { type Held, Threads } from "./threads.ts";

/** What may never be in a log: whoever finds one of these words there has found a token or a payload. */
export const canary = "CANARY";
export const token = `${canary}-token-5f1c`;
export const maxPayload = 20_000;
export const maxFrame = 200_000;

const pageBytes = 4096;
/** Words of a stack or of our own files: they tell a client what it need not know. */
const internals = /\n\s+at |node:internal|\.[jt]s:\d|TypeError|RangeError|is not a function|Cannot read|dist-?\w*\//;

export interface Baseline {
  readonly held: Held;
  /** Bytes of all threads together. */
  readonly heldBytes: number;
  readonly rss: number;
  readonly fds: number;
}

/** What may be more than at the baseline. */
export interface Spare {
  /** What bounded memories of the node (history, dedupe, tail) may still take, and code that was compiled meanwhile. */
  readonly heldBytes: number;
  /** Of the process: besides that, what the allocator does not give back. */
  readonly rssBytes: number;
}

export class Target {
  readonly node: NodeProcess;
  private readonly threads: Threads;
  private readonly remove: () => void;

  private constructor(node: NodeProcess, threads: Threads, remove: () => void) {
    this.node = node;
    this.threads = threads;
    this.remove = remove;
  }

  static async start(env: Record<string, string> = {}): Promise<Target> {
    const data = dataFolder();
    const beside = dataFolder();
    const threads = new Threads(beside.path);
    const node = await startNode({
      data: data.path,
      env: {
        NODE_OPTIONS: threads.nodeOptions,
        WS_TOKEN: token,
        LOG_LEVEL: "debug",
        CONN_RATE: "off",
        TOPIC_RATE: "off",
        HTTP_PORT: "off",
        OPS_PORT: "off",
        REPLAY_PORT: "off",
        PARTITIONS: "4",
        MAX_PAYLOAD: String(maxPayload),
        MAX_FRAME: String(maxFrame),
        ...env,
      },
    });
    return new Target(node, threads, () => {
      data.remove();
      beside.remove();
    });
  }

  get port(): number {
    return this.node.ports.ws;
  }

  async get(path: string): Promise<{ status: number; text: string }> {
    const answer = await fetch(`${this.node.http}${path}`, { headers: { authorization: `Bearer ${token}` } });
    return { status: answer.status, text: await answer.text() };
  }

  get rss(): number {
    return Number(readFileSync(`/proc/${this.node.child.pid}/statm`, "utf8").split(" ")[1]) * pageBytes;
  }

  get fds(): number {
    return readdirSync(`/proc/${this.node.child.pid}/fd`).length;
  }

  /** The lowest of a few looks. */
  async baseline(): Promise<Baseline> {
    let held: Held = new Map();
    let [heldBytes, rss, fds] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
    for (let i = 0; i < 3; i++) {
      const seen = await this.threads.look(this.node.child.pid as number);
      const seenBytes = [...seen.values()].reduce((sum, bytes) => sum + bytes, 0);
      if (seenBytes < heldBytes) [held, heldBytes] = [seen, seenBytes];
      rss = Math.min(rss, this.rss);
      fds = Math.min(fds, this.fds);
    }
    return { held, heldBytes, rss, fds };
  }

  /**
   * Waits until memory and file descriptors are back. A warm-up of the same kind must have come before the baseline. A few descriptors
   * are those of segments that were begun meanwhile, and of fetch.
   */
  async backTo(before: Baseline, spare: Spare, what: string): Promise<Baseline> {
    let now = before;
    const isBack = async () => {
      now = await this.baseline();
      return (
        now.heldBytes <= before.heldBytes + spare.heldBytes &&
        now.rss <= before.rss + spare.rssBytes &&
        now.fds <= before.fds + 4
      );
    };
    await eventually(20_000, what, isBack).catch((error: Error) => {
      const allowed = `allowed ${mib(spare.heldBytes)} held and ${mib(spare.rssBytes)} in all more`;
      throw new Error(`${error.message}: ${shown(now)}, before ${shown(before)}, ${allowed}`);
    });
    return now;
  }

  /** The first thing that is wrong with what the node has written, or with whether it lives. */
  fault(): string | undefined {
    const { child, out } = this.node;
    if (child.exitCode !== null || child.signalCode !== null) return `the node ended: ${out().slice(-2000)}`;
    for (const line of out().split("\n")) {
      if (line.includes(canary)) return `a secret is in the log: ${line.slice(0, 300)}`;
      if (/unhandled|uncaught|not handled|handler failed|answer failed|MaxListeners|failed its/i.test(line))
        return `the node says: ${line.slice(0, 600)}`;
    }
    return undefined;
  }

  async stop(): Promise<void> {
    await this.node.kill("SIGKILL");
    this.remove();
  }
}

const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

/** In words, for reports. */
export function shown({ held, rss, fds }: Baseline): string {
  const threads = [...held].map(([thread, bytes]) => `${thread} ${mib(bytes)}`).join(", ");
  return `${mib(rss)} (held by ${threads}), ${fds} descriptors`;
}

/** What is wrong with a refusal whatever was sent. */
export function refusalFault({ code, msg }: { readonly code?: unknown; readonly msg?: unknown }): string | undefined {
  if (typeof code !== "string" || !(code in codes)) return `code ${code} is not documented`;
  if (code === "internal") return "internal";
  if (typeof msg !== "string" || msg.length === 0) return "no msg";
  if (msg.length > 1000) return `a msg of ${msg.length} characters`;
  if (internals.test(msg)) return `internals in a msg: ${msg}`;
  if (msg.includes(canary)) return `a secret in a msg: ${msg}`;
  return undefined;
}
