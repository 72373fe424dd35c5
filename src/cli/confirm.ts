// Asking before something that cannot be taken back.

import { createInterface } from "node:readline/promises";
import { usage } from "./arguments.ts";
import { CliError, type Context } from "./context.ts";

/** Resolves if it may go on. Without anybody to ask, --yes is needed. */
export async function confirm(context: Context, question: string, yes: boolean | undefined): Promise<void> {
  if (yes) return;
  if (!process.stdin.isTTY || !process.stderr.isTTY) throw usage(`${question} Add --yes to do it`);
  const prompt = createInterface({ input: process.stdin, output: process.stderr });
  try {
    const answer = await prompt.question(`${question} Go on? [y/N] `, { signal: context.signal });
    if (!/^y(es)?$/i.test(answer.trim())) throw new CliError("nothing was done");
  } finally {
    prompt.close();
  }
}
