// What is piped into a command: all of it, or line by line. Both end with an AbortError when the signal comes.

import { addAbortSignal } from "node:stream";
import { eachLine, LineBlocks } from "./ndjson.ts";

export class InputTooLong extends Error {}

/** Throws InputTooLong past the bound. */
export async function readStdin(signal: AbortSignal, bytesMax: number): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of addAbortSignal(signal, process.stdin) as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > bytesMax) throw new InputTooLong(`stdin has more than ${bytesMax} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}

/** Without their ends, be they of Unix or of Windows. What stands behind the last newline is a line unless it is empty. */
export async function* stdinLines(signal: AbortSignal): AsyncGenerator<string> {
  const blocks = new LineBlocks();
  for await (const chunk of addAbortSignal(signal, process.stdin) as AsyncIterable<Buffer>) {
    const block = blocks.push(chunk);
    if (block !== undefined) yield* linesOf(block);
  }
  const rest = blocks.rest();
  if (rest.length > 0) yield rest.toString("utf8");
}

function linesOf(block: Buffer): string[] {
  const lines: string[] = [];
  eachLine(block, (start, end) => lines.push(block.toString("utf8", start, end).replace(/\r$/, "")));
  return lines;
}
