// Runs the code blocks of a Markdown document as a reader would paste them, and compares what they print with what the document
// says they print. The rules, for whoever writes the document:
//
// - A block marked `sh` is typed line by line into a terminal, in a folder that was empty at the start. A line that fails fails the
//   document, unless its output is shown.
// - The block without a language that follows is all that the block printed, errors included, but for what `npm install` says.
//   A line with nothing but … stands for any lines. Compared is every character but those that cannot be the same twice: times,
//   durations, rates, ports above 32767, numbers of processes, the number of workers, and ids. An id that is shown twice must be
//   the same id twice, and one that was shown may be used in a later command or file: the real one is put in its place.
// - A program that goes on running keeps its terminal busy. It is left there once it has printed what is shown, a node whose output
//   is not shown once it says it is ready. Ctrl-C in the text before the next block ends it.
// - Terminals are named in the text before a block: "first terminal", "second terminal" … A new one starts in the folder of the one
//   used before. A block without a language whose text names a terminal is what that terminal has printed since.
// - A block in another language is written to a file if it is named: the text before it ends in a colon and its last paragraph has the
//   name in backticks, or the name stands behind the language. Otherwise it is only shown.
// - `<!-- not run: why -->` before a block leaves it and its output alone.

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { dirname, join } from "node:path";
import type { Readable, Writable } from "node:stream";
import { eventually, pause, within } from "./deadline.ts";

export interface Block {
  readonly language: string;
  /** What stands behind the language. */
  readonly info: string;
  readonly text: string;
  /** The line of its first line of text, from 1. */
  readonly line: number;
  /** The text between the block before it and this one. */
  readonly before: string;
}

export interface Output {
  readonly line: number;
  readonly text: string;
}

export type Step =
  | {
      readonly kind: "run";
      readonly line: number;
      readonly commands: readonly string[];
      readonly terminal: number | undefined;
      readonly interrupts: boolean;
      readonly output: Output | undefined;
    }
  | { readonly kind: "output"; readonly terminal: number; readonly output: Output }
  | { readonly kind: "file"; readonly line: number; readonly name: string; readonly text: string }
  | { readonly kind: "shown"; readonly line: number };

export interface RunOptions {
  readonly folder: string;
  readonly env: NodeJS.ProcessEnv;
  /** How long one command may take. */
  readonly commandMs?: number;
}

const shells = ["sh", "bash"];
const ordinals = ["first", "second", "third", "fourth"];
const fileName = /[\w./-]+\.[a-z]\w*/;
/** Starts a node: `npx narthex`, with settings before it and flags behind it, but no other command. */
const startsNode = /^(?:\w+=\S+\s+)*npx narthex(?: start)?(?:\s+-.*)?$/;
const installs = /^npm (?:install|i|ci|init)\b/;
/** How long an output that is complete must stay as it is. The report of an end may overtake what was printed before it. */
const settleMs = { running: 300, ended: 50 };
const exitMs = 5000;

// ---------------------------------------------------------------------------------------------------------------------
// Reading

export function readBlocks(markdown: string): Block[] {
  const blocks: Block[] = [];
  const lines = markdown.split("\n");
  let before: string[] = [];
  for (let i = 0; i < lines.length; i++) {
    const fence = /^(`{3,})\s*(\S*)\s*(.*)$/.exec(lines[i]!);
    if (fence === null) {
      before.push(lines[i]!);
      continue;
    }
    const [, ticks, language, info] = fence as unknown as [string, string, string, string];
    const end = lines.findIndex((line, at) => at > i && line.startsWith(ticks) && line.trim() === ticks);
    if (end < 0) throw new Error(`line ${i + 1}: this block has no end`);
    const text = lines.slice(i + 1, end).join("\n");
    blocks.push({ language, info: info.trim(), text, line: i + 2, before: before.join("\n") });
    before = [];
    i = end;
  }
  return blocks;
}

export function stepsOf(blocks: readonly Block[]): Step[] {
  const steps: Step[] = [];
  for (let i = 0; i < blocks.length; i++) {
    const block = blocks[i]!;
    const { language, line, text } = block;
    const terminal = terminalNamed(block.before);
    const next = blocks[i + 1];
    const hasOutput = next !== undefined && next.language === "" && terminalNamed(next.before) === undefined;
    const isLeftOut = /<!--\s*not run\b/.test(block.before);
    if (shells.includes(language)) {
      if (hasOutput) i++;
      if (isLeftOut) {
        steps.push({ kind: "shown", line });
        continue;
      }
      const output = hasOutput ? { line: next.line, text: next.text } : undefined;
      const interrupts = /\bCtrl-C\b/.test(block.before);
      steps.push({ kind: "run", line, commands: commandsIn(text, line), terminal, interrupts, output });
    } else if (isLeftOut) {
      steps.push({ kind: "shown", line });
    } else if (language === "") {
      const output = { line, text };
      steps.push(terminal === undefined ? { kind: "shown", line } : { kind: "output", terminal, output });
    } else {
      const name = fileNamed(block);
      steps.push(name === undefined ? { kind: "shown", line } : { kind: "file", line, name, text: `${text}\n` });
    }
  }
  return steps;
}

function terminalNamed(text: string): number | undefined {
  const found = [...text.matchAll(/\b(first|second|third|fourth) terminal\b/gi)].at(-1);
  return found && ordinals.indexOf(found[1]!.toLowerCase());
}

function fileNamed({ info, before }: Block): string | undefined {
  const inInfo = new RegExp(`^(?:title=)?"?(${fileName.source})"?$`).exec(info);
  if (inInfo !== null) return inInfo[1];
  const paragraph = before
    .trimEnd()
    .split(/\n\s*\n/)
    .at(-1)!;
  if (!paragraph.endsWith(":")) return undefined;
  return [...paragraph.matchAll(new RegExp(`\`(${fileName.source})\``, "g"))].at(-1)?.[1];
}

/** Lines as bash takes them: one that is not complete (a backslash, a quote, a here-document) goes on in the next. */
function commandsIn(text: string, line: number): string[] {
  const commands: string[] = [];
  let open = "";
  for (const part of text.split("\n")) {
    open = open === "" ? part : `${open}\n${part}`;
    if (open.trim() === "" || /^\s*#.*$/.test(open)) {
      open = "";
      continue;
    }
    const { status, stderr } = spawnSync("bash", ["-n"], { input: `${open}\n`, encoding: "utf8" });
    if (status !== 0 || stderr !== "" || open.endsWith("\\")) continue;
    commands.push(open);
    open = "";
  }
  if (open.trim() !== "") throw new Error(`line ${line}: bash does not understand: ${open}`);
  return commands;
}

// ---------------------------------------------------------------------------------------------------------------------
// Comparing

const idPattern = /\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b/g;

const masks: readonly (readonly [RegExp, string])[] = [
  [/\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?/g, "<time>"],
  [/\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b/g, "<time>"],
  [/\b1\d{12}\b/g, "<time>"],
  [/(?<![\w.])\d[\d,.]*\s?(?:[kM]?B|events|msgs?)?\/s\b/g, "<rate>"],
  [/(?<![\w.])\d[\d,.]*\s?(?:ns|µs|us|ms|s|min)\b/g, "<duration>"],
  [/:(?:3276[89]|327[7-9]\d|32[89]\d\d|3[3-9]\d{3}|[4-6]\d{4})\b/g, ":<port>"],
  [/\b(process |pid[ =:]+)\d+\b/g, "$1<number>"],
  [/\bworkers=\d+/g, "workers=<number>"],
];

/** The ids that one side has shown, in the order of their appearance. */
class Ids {
  private readonly seen: string[];

  constructor(seen: readonly string[] = []) {
    this.seen = [...seen];
  }

  copy(): Ids {
    return new Ids(this.seen);
  }

  number(id: string): number {
    if (!this.seen.includes(id)) this.seen.push(id);
    return this.seen.indexOf(id);
  }

  has(id: string): boolean {
    return this.seen.includes(id);
  }

  at(number: number): string | undefined {
    return this.seen[number];
  }
}

function mask(text: string, ids: Ids): string {
  let masked = text.replace(idPattern, (id) => `<id ${ids.number(id)}>`);
  for (const [pattern, name] of masks) masked = masked.replace(pattern, name);
  // Columns are as wide as what stands in them.
  return masked.replace(/ *(<(?:duration|rate|time)>) */g, " $1 ").trimEnd();
}

/** Where the two differ, or undefined. */
function difference(expected: string, actual: string): string | undefined {
  const lines = expected.split("\n");
  const parts = lines.map((line) =>
    line.trim() === "…" ? "(?:.*\\n)*?" : `${line.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}\\n`,
  );
  const text = actual === "" ? "" : `${actual}\n`;
  if (new RegExp(`^${parts.join("")}$`).test(text)) return undefined;
  let same = parts.length;
  while (!new RegExp(`^${parts.slice(0, same).join("")}`).test(text)) same--;
  const got = parts.slice(0, same).some((part) => part.startsWith("("))
    ? "(none of the lines)"
    : actual.split("\n")[same];
  return `the document says: ${lines[same] ?? "(nothing more)"}\n  it is:             ${got ?? "(nothing more)"}`;
}

// ---------------------------------------------------------------------------------------------------------------------
// Running

class Terminal {
  cwd: string;
  /** Printed since it was looked at last. */
  printed = "";
  command = "";
  /** The exit code of the command, undefined while it runs. */
  code: number | undefined = 0;
  private readonly child: ChildProcess;
  private readonly exited: Promise<unknown>;

  constructor(cwd: string, env: NodeJS.ProcessEnv) {
    this.cwd = cwd;
    // In the process group of the test, so that nothing outlives it.
    this.child = spawn("bash", ["--noprofile", "--norc"], { cwd, env, stdio: ["pipe", "pipe", "pipe", "pipe"] });
    const [, out, err, reports] = this.child.stdio as unknown as Readable[];
    for (const stream of [out!, err!]) {
      stream.setEncoding("utf8").on("data", (text: string) => {
        this.printed += text;
      });
    }
    let line = "";
    reports!.setEncoding("utf8").on("data", (text: string) => {
      line += text;
      if (!line.endsWith("\n")) return;
      const [, code, folder] = /^(\d+) (.*)\n$/.exec(line) ?? [];
      this.code = Number(code);
      this.cwd = folder ?? this.cwd;
      line = "";
    });
    this.exited = once(this.child, "exit").then(() => {
      this.code ??= -1;
    });
  }

  type(command: string): void {
    this.command = command;
    this.code = undefined;
    (this.child.stdin as Writable).write(`{ ${command}\n} </dev/null 2>&1\nprintf '%s %s\\n' "$?" "$PWD" >&3\n`);
  }

  interrupt(): void {
    for (const pid of descendants(this.child.pid!)) signal(pid, "SIGINT");
  }

  async end(): Promise<void> {
    for (const pid of [this.child.pid!, ...descendants(this.child.pid!)]) signal(pid, "SIGKILL");
    await within(exitMs, "the shell ends", this.exited);
  }
}

function descendants(pid: number): number[] {
  const parents = new Map<number, number>();
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const stat = statOf(Number(name));
    // The name in brackets may contain anything; the parent is the second field behind it.
    if (stat !== undefined) parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]));
  }
  const found = [pid];
  for (const parent of found) for (const [child, of] of parents) if (of === parent) found.push(child);
  return found.slice(1);
}

function statOf(pid: number): string | undefined {
  try {
    return readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined; // It ended while the list was read.
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/** Runs the whole document; throws with the line of the document at the first thing that is not as it says. */
export async function runDocument(markdown: string, options: RunOptions): Promise<Step[]> {
  const steps = stepsOf(readBlocks(markdown));
  const session = new Session(options);
  try {
    for (const step of steps) await session.perform(step);
  } finally {
    await session.end();
  }
  return steps;
}

class Session {
  private readonly options: RunOptions;
  private readonly terminals: Terminal[] = [];
  private readonly documentIds = new Ids();
  private readonly actualIds = new Ids();
  private readonly commandMs: number;
  private current = 0;

  constructor(options: RunOptions) {
    this.options = options;
    this.commandMs = options.commandMs ?? 60_000;
  }

  async end(): Promise<void> {
    await Promise.all(this.terminals.map((terminal) => terminal.end()));
  }

  async perform(step: Step): Promise<void> {
    switch (step.kind) {
      case "run":
        return this.run(step);
      case "output":
        return this.compare(this.terminal(step.terminal), step.output);
      case "file": {
        const path = join(this.terminal(undefined).cwd, step.name);
        mkdirSync(dirname(path), { recursive: true });
        return writeFileSync(path, this.withRealIds(step.text));
      }
      case "shown":
        return;
      default:
        return step satisfies never;
    }
  }

  private terminal(number: number | undefined): Terminal {
    const before = this.terminals[this.current];
    this.current = number ?? this.current;
    this.terminals[this.current] ??= new Terminal(before?.cwd ?? this.options.folder, this.options.env);
    return this.terminals[this.current]!;
  }

  private async run(step: Extract<Step, { kind: "run" }>): Promise<void> {
    const { line, commands, output, interrupts } = step;
    const terminal = this.terminal(step.terminal);
    if (interrupts) terminal.interrupt();
    await this.idle(terminal, `line ${line}: this terminal is still busy with: ${terminal.command}`);
    terminal.printed = "";
    for (const [i, command] of commands.entries()) {
      terminal.type(this.withRealIds(command));
      const isLast = i === commands.length - 1;
      if (isLast && output !== undefined) return this.compare(terminal, output);
      if (startsNode.test(command)) {
        if (!isLast) throw new Error(`line ${line}: ${command} goes on running, so nothing can be typed after it`);
        await this.ready(terminal, line);
        return;
      }
      await this.idle(terminal, `line ${line}: ${command} does not end; it printed:\n${terminal.printed}`);
      const isInstall = installs.test(command);
      if (terminal.code !== 0 && (isInstall || output === undefined)) throw failed(terminal, line);
      if (isInstall) terminal.printed = "";
    }
  }

  private async ready(terminal: Terminal, line: number): Promise<void> {
    const isReady = () => terminal.code !== undefined || /^narthex ready$/m.test(terminal.printed);
    await this.wait(isReady, () => `line ${line}: the node is not ready; it printed:\n${terminal.printed}`);
    if (terminal.code !== undefined) throw failed(terminal, line);
  }

  private idle(terminal: Terminal, otherwise: string): Promise<void> {
    return this.wait(
      () => terminal.code !== undefined,
      () => otherwise,
    );
  }

  private async wait(condition: () => boolean, otherwise: () => string): Promise<void> {
    await eventually(this.commandMs, "", condition).catch((error: unknown) => {
      throw new Error(otherwise(), { cause: error });
    });
  }

  /** Waits until all of the output is there and nothing more comes. */
  private async compare(terminal: Terminal, output: Output): Promise<void> {
    const expected = mask(output.text, this.documentIds);
    const look = () => difference(expected, mask(terminal.printed, this.actualIds.copy()));
    const isOver = () => terminal.code !== undefined || look() === undefined;
    await eventually(this.commandMs, "", isOver).catch((error: unknown) => {
      throw new Error(differs(terminal, output, look() ?? ""), { cause: error });
    });
    await pause(terminal.code === undefined ? settleMs.running : settleMs.ended);
    const wrong = look();
    if (wrong !== undefined) throw new Error(differs(terminal, output, wrong));
    mask(terminal.printed, this.actualIds);
    terminal.printed = "";
  }

  private withRealIds(text: string): string {
    return text.replace(idPattern, (id) =>
      this.documentIds.has(id) ? (this.actualIds.at(this.documentIds.number(id)) ?? id) : id,
    );
  }
}

function failed(terminal: Terminal, line: number): Error {
  return new Error(`line ${line}: ${terminal.command} ended with ${terminal.code}; it printed:\n${terminal.printed}`);
}

function differs(terminal: Terminal, output: Output, how: string): string {
  return `line ${output.line}: ${terminal.command}\n  ${how}\n  all of it:\n${terminal.printed}`;
}

/** A document uses the ports that a node has by default. */
export async function requireFreePorts(ports: readonly number[]): Promise<void> {
  for (const port of ports) {
    const server = createServer();
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(port, "127.0.0.1", () => server.close(() => resolve()));
    }).catch((error: NodeJS.ErrnoException) => {
      const why = error.code === "EADDRINUSE" ? "is taken" : `cannot be had (${error.code})`;
      throw new Error(`port ${port} ${why}, and the document needs it: end what has it`, { cause: error });
    });
  }
}
