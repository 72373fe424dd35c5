// A program of a bench in a process of its own that does one thing after the other: what it is asked, it answers. Both ends are here.

import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";

type Reply<Answer> = { readonly answer: Answer } | { readonly fault: string };

/** `program`: its built name, beside this one. */
export class Child<Ask extends object, Answer> {
  readonly pid: number;
  private readonly process: ChildProcess;
  private readonly exited: Promise<unknown>;

  constructor(program: string) {
    const path = new URL(`./${program}.js`, import.meta.url).pathname;
    this.process = fork(path, { serialization: "advanced", stdio: ["ignore", "inherit", "inherit", "ipc"] });
    this.pid = this.process.pid as number;
    this.exited = once(this.process, "exit");
  }

  async ask(question: Ask): Promise<Answer> {
    const answered = once(this.process, "message") as Promise<[Reply<Answer>]>;
    const gone = this.exited.then(() => {
      throw new Error("a client process ended before it answered");
    });
    this.process.send(question);
    const [reply] = await Promise.race([answered, gone]);
    gone.catch(() => undefined);
    if ("fault" in reply) throw new Error(reply.fault);
    return reply.answer;
  }

  async end(): Promise<void> {
    this.process.kill("SIGKILL");
    await this.exited;
  }
}

/** The other end. It ends with the process that asks. */
export function answerWith<Ask extends object, Answer>(handle: (question: Ask) => Promise<Answer>): void {
  process.on("message", async (question: Ask) => {
    const reply = await handle(question).then(
      (answer): Reply<Answer> => ({ answer }),
      (error: Error): Reply<Answer> => ({ fault: error.stack ?? error.message }),
    );
    process.send?.(reply);
  });
  process.on("disconnect", () => process.exit());
}
