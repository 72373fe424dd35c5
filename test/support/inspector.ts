// A way into a running node: evaluates in its main thread or in a worker, through the inspector of Node (`--inspect=0` with a port of
// its own). Used to keep a thread busy; what keeps busy is not answered, so nothing is waited for.

import { WebSocket } from "ws";
import { eventually, within } from "./deadline.ts";
import type { NodeProcess } from "./node-process.ts";

interface Said {
  readonly id?: number;
  readonly method?: string;
  readonly params?: { readonly sessionId?: string; readonly workerInfo?: { readonly title: string } };
}

export class Inspector {
  /** Of the workers, in the order of their threads. */
  readonly workers: string[] = [];
  private readonly socket: WebSocket;
  private id = 1;

  private constructor(socket: WebSocket) {
    this.socket = socket;
    socket.on("message", (data) => {
      const { method, params } = JSON.parse(data.toString()) as Said;
      if (method === "NodeWorker.attachedToWorker" && params?.sessionId !== undefined)
        this.workers.push(params.sessionId);
    });
    socket.on("error", () => undefined);
  }

  static async open(node: NodeProcess, workers: number): Promise<Inspector> {
    const url = await eventually(5000, "the inspector listens", () => node.out().match(/ws:\/\/\S+/)?.[0]);
    const socket = new WebSocket(url);
    const inspector = new Inspector(socket);
    await within(5000, "the inspector opens", new Promise((resolve) => socket.once("open", resolve)));
    inspector.send("NodeWorker.enable", { waitForDebuggerOnStart: false });
    await eventually(5000, "the workers", () => inspector.workers.length >= workers || undefined);
    return inspector;
  }

  inMain(expression: string): void {
    this.send("Runtime.evaluate", { expression });
  }

  inWorker(index: number, expression: string): void {
    const message = JSON.stringify({ id: this.id++, method: "Runtime.evaluate", params: { expression } });
    this.send("NodeWorker.sendMessageToWorker", { sessionId: this.workers[index], message });
  }

  close(): void {
    this.socket.terminate();
  }

  private send(method: string, params: object): void {
    this.socket.send(JSON.stringify({ id: this.id++, method, params }));
  }
}

/** Keeps a thread busy for so long. */
export function busyFor(ms: number): string {
  return `{ const end = performance.now() + ${ms}; while (performance.now() < end); }`;
}
