// A command of the user's, run once for an event. It has a process group of its own: Ctrl-C in the terminal is for us, and what it
// has begun may end.

import { type ChildProcess, spawn } from "node:child_process";
import type { Context as Lease } from "../client/client.ts";
import type { EventRecord } from "../protocol/event.ts";
import { realClock } from "../runtime/clock.ts";

export type CommandEnd =
  | { readonly kind: "ok"; readonly ms: number }
  | { readonly kind: "failed"; readonly ms: number; readonly reason: string }
  /** The lease was lost while it ran, so it was ended. */
  | { readonly kind: "lost"; readonly ms: number; readonly reason: string };

/** The commands that run. A second Ctrl-C ends us at once, and them with us. */
export class Commands {
  private readonly running = new Set<ChildProcess>();
  private readonly clock = realClock();
  private readonly toStderr: boolean;
  private readonly killAll = () => {
    for (const child of this.running) killGroup(child);
  };

  /** `toStderr`: our stdout has a format of its own, so theirs goes to stderr. */
  constructor({ toStderr }: { readonly toStderr: boolean }) {
    this.toStderr = toStderr;
    process.on("exit", this.killAll);
  }

  get size(): number {
    return this.running.size;
  }

  /** Payload on stdin, the facts of the event in the environment. */
  run(command: string, event: EventRecord<unknown>, lease: Lease): Promise<CommandEnd> {
    const from = this.clock.mono();
    return new Promise((resolve) => {
      const child = spawn(command, {
        shell: true,
        detached: true,
        stdio: ["pipe", this.toStderr ? 2 : 1, 2],
        env: { ...process.env, ...environmentOf(event, lease) },
      });
      const kill = () => killGroup(child);
      const end = (outcome: (ms: number) => CommandEnd) => {
        lease.signal.removeEventListener("abort", kill);
        this.running.delete(child);
        resolve(outcome(Math.round(this.clock.mono() - from)));
      };
      this.running.add(child);
      lease.signal.addEventListener("abort", kill, { once: true });
      child.on("error", ({ message }) => end((ms) => ({ kind: "failed", ms, reason: message })));
      child.on("close", (code, signal) =>
        end((ms) => {
          if (lease.signal.aborted) return { kind: "lost", ms, reason: "the lease was lost while the command ran" };
          if (code === 0) return { kind: "ok", ms };
          return { kind: "failed", ms, reason: code === null ? `killed by ${signal}` : `exit code ${code}` };
        }),
      );
      // A command that does not read its stdin is none the worse for it.
      child.stdin?.on("error", (error: NodeJS.ErrnoException) => {
        if (error.code !== "EPIPE") child.emit("error", error);
      });
      child.stdin?.end(`${JSON.stringify(event.payload)}\n`);
    });
  }

  close(): void {
    process.off("exit", this.killAll);
  }
}

function killGroup({ pid, exitCode, signalCode }: ChildProcess): void {
  if (pid === undefined || exitCode !== null || signalCode !== null) return;
  try {
    process.kill(-pid, "SIGTERM");
  } catch (error) {
    // It ended a moment ago.
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

function environmentOf({ topic, id, key }: EventRecord<unknown>, { group, attempt }: Lease): Record<string, string> {
  return {
    NARTHEX_TOPIC: topic,
    NARTHEX_GROUP: group,
    NARTHEX_ID: id,
    // A variable cannot hold a NUL.
    NARTHEX_KEY: (key ?? "").replaceAll("\0", ""),
    NARTHEX_ATTEMPT: String(attempt),
  };
}
