// What a node says of itself while it is hurt, and what it holds of the machine.

import { existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { eventually } from "./deadline.ts";

export interface Ready {
  readonly status: number;
  readonly reasons: readonly string[];
  readonly shards: readonly { readonly shard: number; readonly status: string; readonly reason?: string }[];
}

/** A kept connection may be let go by the other end just then, and a look may be taken twice. */
async function look(url: string): Promise<Response> {
  return fetch(url).catch(() => fetch(url));
}

export async function readiness(http: string): Promise<Ready> {
  const response = await look(`${http}/health/ready`);
  return { status: response.status, ...((await response.json()) as Omit<Ready, "status">) };
}

/** Resolves with the reasons, joined, once they say this. */
export function untilNotReady(http: string, why: RegExp, ms = 5000): Promise<string> {
  return eventually(ms, `not ready because of ${why}`, async () => {
    const { status, reasons } = await readiness(http);
    const said = reasons.join("; ");
    return status === 503 && why.test(said) && said;
  });
}

/** Gives the milliseconds that it took. */
export async function untilReady(http: string, ms = 8000): Promise<number> {
  const began = performance.now();
  await eventually(ms, "ready again", async () => (await readiness(http)).status === 200);
  return performance.now() - began;
}

/** The values of one metric, by the text of their labels. */
export async function metric(http: string, name: string): Promise<Map<string, number>> {
  const text = await (await look(`${http}/metrics`)).text();
  const lines = [...text.matchAll(new RegExp(`^(?:narthex_)?${name}(?:\\{([^}]*)\\})? (\\S+)$`, "gm"))];
  return new Map(lines.map(([, labels, value]) => [labels ?? "", Number(value)]));
}

/**
 * Resolves when each shard has opened its derived index, which it does when the first segment is full enough for another. A fault in that
 * very moment is one that lmdb cannot bear (lmdb-table.ts), and not what is looked for.
 */
export async function untilIndexed(data: string, shards = 2): Promise<void> {
  await eventually(10_000, "every shard has its index", () =>
    Array.from({ length: shards }, (_, shard) => join(data, `shard-${shard}`, "derived")).every((folder) => {
      const names = existsSync(folder) ? readdirSync(folder) : [];
      return names.includes("data.mdb") && !names.includes("opening") && !names.includes("room");
    }),
  );
}

/** Open files of a process below a folder. */
export function openFiles(pid: number, below: string): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    const path = linkOf(`/proc/${pid}/fd/${fd}`);
    return path?.startsWith(below) ? [path] : [];
  });
}

export function descriptorCount(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).length;
}

export function residentMb(pid: number): number {
  const [, kb] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  return Number(kb) / 1024;
}

/** Undefined: it was closed since it was listed. */
function linkOf(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
