// Where the node under test keeps its events, and how it is started and ended. What is true of one store only stands here: another
// store is another Environment, and the harness does not notice.

import { existsSync, readdirSync, readFileSync, renameSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pause, within } from "../support/deadline.ts";
import { dataFolder, launch } from "../support/node-process.ts";

export interface StartChoice {
  readonly workers: number;
  /** The program that users run, with its limits; else the one with small limits. */
  readonly plain: boolean;
}

export interface RunningNode {
  readonly plain: boolean;
  readonly pid: number;
  /** Resolves with where it is, or undefined if it ended before it served. */
  readonly ready: Promise<{ readonly ws: string; readonly http: string } | undefined>;
  readonly exited: Promise<number | string>;
  /** Resolves when it has begun to open what an earlier process left, or has ended. */
  recovering(): Promise<void>;
  signal(signal: NodeJS.Signals): void;
  /** Of the processor so far. */
  cpuMs(): number;
  out(): string;
}

export interface Environment {
  readonly name: string;
  start(choice: StartChoice): RunningNode;
  /** Takes all data away; only while no node runs. */
  reset(): void;
  /** How many files of the log were met so far, by number and shard: how much rolling there was. */
  observe(): void;
  facts(): readonly (readonly [name: string, count: number])[];
  /** Leaves the data for somebody to look at and says where it is. */
  keep(): string;
  remove(): void;
}

/** Nodes that run now: none is left behind when the harness is ended. */
const running = new Set<RunningNode>();
process.on("exit", () => {
  for (const node of running) node.signal("SIGKILL");
});

const port = /^narthex ws +http:\/\/([^\s]+)/m;

/** `isOpening`: whether a process that was started now has come to the data. */
export function startProgram(
  env: Record<string, string>,
  data: string,
  { workers, plain }: StartChoice,
  isOpening: () => boolean,
): RunningNode {
  const { child, exited, seen, out } = launch({
    data,
    sourceMaps: false,
    env: {
      ...env,
      ...(plain ? {} : { CRASH_NODE: "small" }),
      WORKERS: String(workers),
      AUTO_CREATE: "false",
      CONN_RATE: "off",
      TOPIC_RATE: "off",
      HTTP_PORT: "off",
      OPS_PORT: "off",
      REPLAY_PORT: "off",
    },
    ...(plain ? {} : { program: "crash-crash.entry" }),
  });
  const served = seen(/narthex ready/).then(() => {
    const address = port.exec(out())?.[1] ?? "";
    return { ws: `ws://${address}`, http: `http://${address}` };
  });
  const node: RunningNode = {
    plain,
    pid: child.pid ?? 0,
    ready: within(30_000, "the node serves", Promise.race([served, exited.then(() => undefined)])),
    exited,
    async recovering() {
      let over = false;
      void Promise.race([served, exited]).then(() => {
        over = true;
      });
      while (!over && !isOpening()) await pause(2);
    },
    cpuMs: () => cpuMsOf(child.pid ?? 0),
    signal: (signal) => void child.kill(signal),
    out,
  };
  running.add(node);
  void exited.then(() => running.delete(node));
  return node;
}

/** STORE=log on a folder of its own. */
export function logEnvironment(): Environment {
  let folder = dataFolder();
  let lives = 0;
  const segments = new Set<string>();
  const spent = { rewritten: 0, spares: 0 };
  return {
    name: "log",
    start(choice) {
      const before = locksIn(folder.path);
      return startProgram({ STORE: "log" }, folder.path, choice, () => locksIn(folder.path) !== before);
    },
    reset() {
      folder.remove();
      folder = dataFolder();
      lives++;
    },
    observe() {
      if (!existsSync(folder.path)) return;
      for (const shard of readdirSync(folder.path).filter((name) => name.startsWith("shard-"))) {
        for (const file of readdirSync(join(folder.path, shard))) {
          if (file === "spare.tmp" || file === "spare") spent.spares++;
          else if (file.endsWith(".log.tmp")) spent.rewritten++;
          else if (file.endsWith(".log")) segments.add(`${lives}/${shard}/${file}`);
          else if (file.endsWith(".damaged")) throw new Error(`${shard}/${file}: the node reports damage`);
        }
      }
    },
    facts: () => [
      ["segment files seen", segments.size],
      ["spare segments seen after a kill", spent.spares],
      ["half-written copies of segments seen after a kill", spent.rewritten],
    ],
    keep() {
      const to = join(tmpdir(), `narthex-crash-${process.pid}-${lives}`);
      renameSync(folder.path, to);
      return to;
    },
    remove: () => folder.remove(),
  };
}

/** The lock of the folder is taken under a new name before anything is read. */
function locksIn(folder: string): string {
  if (!existsSync(folder)) return "";
  return readdirSync(folder)
    .filter((name) => /^lock\.\d+$/.test(name))
    .join();
}

/** 0 when it is gone. The kernel counts in hundredths of a second. */
function cpuMsOf(pid: number): number {
  const stat = kernelSays(pid, "stat");
  const [user, system] = stat
    .slice(stat.lastIndexOf(")") + 2)
    .split(" ")
    .slice(11, 13);
  return stat === "" ? 0 : 10 * (Number(user) + Number(system));
}

/** What the kernel says of a process that was killed: nothing of it may be left when the next one starts. */
export function isGone(pid: number): boolean {
  const status = kernelSays(pid, "status");
  return status === "" || /^State:\s+Z/m.test(status);
}

/** Nothing of a process that is gone. */
function kernelSays(pid: number, about: "stat" | "status"): string {
  try {
    return readFileSync(`/proc/${pid}/${about}`, "utf8");
  } catch (error) {
    if (!["ENOENT", "ESRCH"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
    return "";
  }
}
