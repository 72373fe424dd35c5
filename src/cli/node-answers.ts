// Asking a node when what answers may be something else, or nothing at all.

import { type Clock, realClock } from "../runtime/clock.ts";
import { CliError, type Context, exitCodes } from "./context.ts";

/** A path is right behind some proxies, and otherwise a slip. */
export function notANode(url: string): CliError {
  const { origin, pathname } = new URL(url);
  const advice = pathname === "/" ? "check NARTHEX_URL or --url" : `try ${origin}, without the path`;
  return new CliError(`what answers at ${url} is no Narthex node: ${advice}`, exitCodes.unreachable);
}

export interface TopicAnswer {
  readonly createdAt: number;
  readonly retention?: { readonly ageMs?: number; readonly bytes?: number };
  readonly offsets: readonly { readonly start: number; readonly end: number }[];
}

/** Undefined: there is no such topic. */
export async function findTopic(context: Context, topic: string): Promise<TopicAnswer | undefined> {
  try {
    return await getTopic(context, topic);
  } catch (error) {
    if (error instanceof CliError && error.exitCode === exitCodes.missing) return undefined;
    throw error;
  }
}

export async function getTopic(
  context: Context,
  topic: string,
  { clock = realClock(), msMax }: { readonly clock?: Clock; readonly msMax?: number } = {},
): Promise<TopicAnswer> {
  const late = new AbortController();
  const timer = msMax === undefined ? undefined : clock.after(msMax, () => late.abort());
  // The context may ask something of its own first, which the signal does not end.
  const over = new Promise<never>((_, reject) => {
    late.signal.addEventListener("abort", () => reject(late.signal.reason), { once: true });
  });
  const asked = context.http(`/topics/${encodeURIComponent(topic)}`, { signal: late.signal });
  try {
    return checked(context.url, await Promise.race([asked.then((response) => response.text()), over]));
  } catch (error) {
    if (error instanceof CliError || context.signal.aborted) throw error;
    const seconds = (msMax ?? 0) / 1000;
    const line = late.signal.aborted
      ? `no answer from ${context.url} within ${seconds} s`
      : `the connection to ${context.url} was lost before its answer was complete`;
    throw new CliError(line, exitCodes.unreachable);
  } finally {
    timer?.cancel();
  }
}

function checked(url: string, text: string): TopicAnswer {
  let answer: Partial<TopicAnswer> | null;
  try {
    answer = JSON.parse(text) as Partial<TopicAnswer> | null;
  } catch {
    throw notANode(url);
  }
  if (!Number.isInteger(answer?.createdAt) || !Array.isArray(answer?.offsets)) throw notANode(url);
  return answer as TopicAnswer;
}
