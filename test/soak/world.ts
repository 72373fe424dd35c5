// What all parts of the load share: the node, what is counted, what was wrong, and loops that end when the load is told to end.

import { setMaxListeners } from "node:events";
import { Agent, request } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { Dice } from "../support/dice.ts";
import type { NodeProcess } from "../support/node-process.ts";
import { Faults, type GroupAudit, type Mark, type TopicAudit } from "./audit.ts";
import { LatencyHistogram } from "./histogram.ts";

export interface Payload {
  /** Line and number. */
  readonly l: number;
  readonly n: number;
  /** When it was published, on this process's clock. */
  readonly t: number;
  /** Nobody can handle it. */
  readonly poison?: true;
  readonly pad: string;
}

export interface WebAnswer {
  readonly status: number;
  readonly trailers: NodeJS.Dict<string>;
  readonly body: Buffer;
}

const answerMs = 30_000;

export class World {
  readonly node: NodeProcess;
  readonly rate: number;
  readonly faults = new Faults();
  readonly dice: Dice;
  readonly topics: TopicAudit[] = [];
  readonly groups: GroupAudit[] = [];
  readonly okMs = new LatencyHistogram();
  readonly eventMs = new LatencyHistogram();
  readonly counts = new Map<string, number>();
  readonly agent = new Agent({ keepAlive: true, maxSockets: 6 });
  /** The sampler waits behind nobody. */
  readonly samplingAgent = new Agent({ keepAlive: true, maxSockets: 1 });
  private readonly loops: Promise<void>[] = [];
  private readonly ending = new AbortController();

  constructor(node: NodeProcess, rate: number, seed: number) {
    this.node = node;
    this.rate = rate;
    this.dice = new Dice(seed);
    // One for each loop that pauses.
    setMaxListeners(100, this.ending.signal);
  }

  get running(): boolean {
    return !this.ending.signal.aborted;
  }

  count(what: string, by = 1): void {
    this.counts.set(what, (this.counts.get(what) ?? 0) + by);
  }

  payload({ line, n }: Mark): Payload {
    const poison = n % 100 === 99 ? { poison: true as const } : {};
    return { l: line, n, t: performance.now(), ...poison, pad: "x".repeat(50 + this.dice.below(300)) };
  }

  /** Runs again and again, with a pause in between, until the load ends; what it throws is a fault of the run. */
  every(ms: number, what: string, once: () => Promise<unknown> | unknown): void {
    this.loops.push(
      (async () => {
        while (this.running) {
          await this.pause(ms);
          if (!this.running) return;
          try {
            await once();
          } catch (error) {
            this.faults.add(`${what}: ${(error as Error).message}`);
          }
        }
      })(),
    );
  }

  /** Ends early when the load ends. */
  async pause(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.ending.signal }).catch((error: Error) => {
      if (error.name !== "AbortError") throw error;
    });
  }

  async end(): Promise<void> {
    this.ending.abort();
    await Promise.all(this.loops);
  }

  web(
    method: string,
    path: string,
    body?: unknown,
    headers: Record<string, string> = {},
    agent = this.agent,
  ): Promise<WebAnswer> {
    const text = body === undefined ? undefined : JSON.stringify(body);
    const type = text === undefined ? {} : { "content-type": "application/json" };
    return new Promise((resolve, reject) => {
      const asked = request(
        `${this.node.http}${path}`,
        { method, agent, headers: { ...type, ...headers }, timeout: answerMs },
        (answer) => {
          const chunks: Buffer[] = [];
          answer.on("data", (chunk: Buffer) => chunks.push(chunk));
          answer.on("error", reject);
          answer.on("end", () =>
            resolve({ status: answer.statusCode ?? 0, trailers: answer.trailers, body: Buffer.concat(chunks) }),
          );
        },
      );
      asked.on("timeout", () => asked.destroy(new Error(`${method} ${path}: no answer within ${answerMs} ms`)));
      asked.on("error", (error: NodeJS.ErrnoException) => {
        // A connection that was kept and had lain idle for so long that the node let it go just then: every client meets that.
        if (asked.reusedSocket && error.code === "ECONNRESET") {
          this.count("kept connections that were gone");
          this.web(method, path, body, headers, agent).then(resolve, reject);
        } else reject(error);
      });
      asked.end(text);
    });
  }

  async json<T>(method: string, path: string, body?: unknown): Promise<T> {
    const answer = await this.web(method, path, body);
    const text = answer.body.toString();
    if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return (text === "" ? undefined : JSON.parse(text)) as T;
  }
}
