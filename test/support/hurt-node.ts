// A node whose kernel does what a test says, with small segments and two workers, on a folder that outlives it.

import { join } from "node:path";
import { test } from "uvu";
import type { Load } from "./fault-load.ts";
import { FaultyKernel } from "./faulty-kernel.ts";
import { dataFolder, type NodeProcess, type StartOptions, startNode } from "./node-process.ts";

export interface Hurt {
  readonly kernel: FaultyKernel;
  /** The data folder of the node. */
  readonly data: string;
  /** How a node on it is started; with the kernel that fails unless it is a healthy one. */
  options(how?: { readonly healthy?: boolean; readonly env?: Record<string, string> }): StartOptions;
  start(how?: { readonly healthy?: boolean; readonly env?: Record<string, string> }): Promise<NodeProcess>;
  /** Ends what runs and removes everything. */
  end(): Promise<void>;
}

const atOnce = 3;
const waiting: (() => Promise<void>)[] = [];
let running = 0;

/**
 * A test of such a node; skipped, and that is said, where calls cannot be made to fail. Those of a file run side by side, a few at a
 * time, from the first one on: most of their time is waiting for a node to try again.
 */
export function hurtTest(name: string, run: (hurt: Hurt) => Promise<void>, limits: Record<string, number> = {}): void {
  sideBySide(name, async () => {
    const hurt = hurtNode(limits);
    if (hurt === undefined) return;
    try {
      await run(hurt);
    } finally {
      await hurt.end();
    }
  });
}

/** One that takes long, or is much like another: only `test/faults/faults.entry.ts` runs it. */
export const longTest: typeof hurtTest = (...args) => {
  if (process.env.FAULTS_ALL !== undefined) hurtTest(...args);
};

/** The same for one that brings its own node. */
export function sideBySide(name: string, run: () => Promise<void>): void {
  const done = new Promise<void>((resolve, reject) => {
    waiting.push(() => run().then(resolve, reject));
  });
  // A test that comes later may fail before its turn to be looked at.
  void Promise.allSettled([done]);
  test(name, () => {
    begin();
    return done;
  });
}

function begin(): void {
  while (running < atOnce && waiting.length > 0) {
    running++;
    void waiting
      .shift()?.()
      .finally(() => {
        running--;
        begin();
      });
  }
}

/** Kills the node, and compares what the next one has with what was confirmed. */
export async function compare(hurt: Hurt, node: NodeProcess, load: Load): Promise<void> {
  await load.stop();
  await node.kill("SIGKILL");
  const next = await hurt.start({ healthy: true });
  await load.checkStored(next.http);
  await load.checkGroup(next.wsUrl);
  await next.kill("SIGKILL");
}

/** Undefined where calls cannot be made to fail here; that was said then. */
function hurtNode(limits: Record<string, number> = {}): Hurt | undefined {
  const folder = dataFolder();
  const data = join(folder.path, "store");
  const kernel = FaultyKernel.make(folder.path, data);
  if (kernel === undefined) {
    folder.remove();
    return undefined;
  }
  const nodes: NodeProcess[] = [];
  const options: Hurt["options"] = ({ healthy = false, env = {} } = {}) => ({
    data,
    program: "faults-small-node.entry",
    env: {
      WORKERS: "2",
      CONN_RATE: "off",
      TOPIC_RATE: "off",
      FAULT_LIMITS: JSON.stringify({ segmentBytes: 512 * 1024, ...limits }),
      ...(healthy ? {} : kernel.env),
      ...env,
    },
  });
  return {
    kernel,
    data,
    options,
    async start(how) {
      const node = await startNode(options(how));
      nodes.push(node);
      return node;
    },
    async end() {
      for (const node of nodes) await node.kill("SIGKILL");
      kernel.close();
      folder.remove();
    },
  };
}
