// GET /export as a reader that believes nothing: the count and the checksum in the trailers are compared with what arrived.

import { createHash } from "node:crypto";
import { get } from "node:http";
import type { EventFrame } from "../support/plain-client.ts";

export interface Exported {
  readonly events: readonly EventFrame["event"][];
  /** Of each partition the end. */
  readonly next: readonly number[];
}

export interface Body {
  readonly status: number;
  readonly text: string;
  readonly trailers: Readonly<Record<string, string | undefined>>;
}

/** Undefined if the connection ended before the answer did. */
export function ask(url: string): Promise<Body | undefined> {
  return new Promise((resolve) => {
    const request = get(url, { agent: false, timeout: 20_000 }, (response) => {
      const chunks: Buffer[] = [];
      response.on("data", (chunk: Buffer) => void chunks.push(chunk));
      response.on("end", () =>
        resolve(
          response.complete
            ? { status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString(), trailers: response.trailers }
            : undefined,
        ),
      );
      response.on("error", () => resolve(undefined));
      response.on("close", () => resolve(undefined));
    });
    request.on("timeout", () => request.destroy(new Error("no answer within 20 s")));
    request.on("error", () => resolve(undefined));
  });
}

/** The log of a topic, in each partition from an offset on; "unknown" if there is none; undefined if nothing could be read. Throws what is wrong with the answer. */
export async function exported(
  http: string,
  topic: string,
  from: readonly number[],
): Promise<Exported | "unknown" | undefined> {
  const after = from.map((offset, partition) => `${partition}:${offset}`).join(",");
  const body = await ask(`${http}/export?topic=${topic}${after === "" ? "" : `&after=${after}`}`);
  if (body === undefined || body.status === 503) return undefined;
  if (body.status === 404) return "unknown";
  const { status, text, trailers } = body;
  if (status !== 200) throw new Error(`export of ${topic} is answered ${status}: ${text.slice(0, 200)}`);
  // Cut off by a store that went away under it: the reader is told by what is missing.
  if (trailers["x-narthex-count"] === undefined) return undefined;
  const lines = text.split("\n").filter((line) => line !== "");
  const checksum = createHash("sha256").update(text).digest("hex");
  if (checksum !== trailers["x-narthex-checksum"])
    throw new Error(`export of ${topic}: the checksum is not of this body`);
  if (lines.length !== Number(trailers["x-narthex-count"])) {
    throw new Error(`export of ${topic}: ${lines.length} lines, said are ${trailers["x-narthex-count"]}`);
  }
  const next: number[] = [];
  for (const part of (trailers["x-narthex-next"] ?? "").split(",")) {
    const [partition, offset] = part.split(":").map(Number);
    next[partition] = offset;
  }
  return { events: lines.map((line) => JSON.parse(line) as EventFrame["event"]), next };
}
