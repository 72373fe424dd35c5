// An export is written as fast as its reader takes it and no faster: between two writes nothing is asked of the partitions but the
// one page each that is read ahead. Trailers close it, so that a reader knows a whole export from a cut one: count, checksum of the
// body, and the position to go on from. Where it cannot be finished the connection is cut before the last chunk.

import { createHash } from "node:crypto";
import type { ServerResponse } from "node:http";
import { isFailure } from "../protocol/failure.ts";
import { positionText } from "../protocol/position.ts";
import type { Clock } from "../runtime/clock.ts";
import type { Logger } from "../runtime/log.ts";
import { type Exchange, orRefuse } from "./http-exchange.ts";
import { copyJoined, type MergedLog, type Run, runBytes } from "./merged-log.ts";

/** Of one write. Short runs are gathered until they make as much. */
const chunkBytes = 64 * 1024;

interface ExportOptions {
  readonly exchange: Exchange;
  readonly merged: MergedLog;
  readonly topic: string;
  /** One event per line; otherwise one JSON array. */
  readonly ndjson: boolean;
  readonly clock: Clock;
  readonly log: Logger;
  /** A reader that takes nothing for so long is cut off. */
  readonly stalledMs: number;
}

export async function exportLog(options: ExportOptions): Promise<void> {
  const { exchange, merged, ndjson, topic, log } = options;
  const { res } = exchange;
  // A failure up to here is still an answer of its own.
  if (!exchange.headOnly) orRefuse(await merged.fill());
  if (res.destroyed) return;
  // Trailers stand behind the last chunk. HTTP/1.0 has no chunks, and Node throws where they are announced without.
  const chunked = exchange.req.httpVersion !== "1.0" && !exchange.headOnly;
  res.writeHead(200, {
    "content-type": ndjson ? "application/x-ndjson; charset=utf-8" : "application/json; charset=utf-8",
    ...(chunked ? { trailer: "x-narthex-count, x-narthex-checksum, x-narthex-next" } : {}),
  });
  if (exchange.headOnly) {
    res.end();
    return;
  }
  const body = new Body(options);
  while (!merged.ended) {
    const failed = await merged.fill();
    if (isFailure(failed)) {
      log.warn("export cut short", { topic, code: failed.code, reason: failed.msg });
      res.destroy();
      return;
    }
    for (;;) {
      const run = merged.take(Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER);
      if (run === undefined) break;
      if (body.add(run) && !(await body.flush())) return;
    }
  }
  if (!(await body.close())) return;
  res.addTrailers({
    "x-narthex-count": String(body.count),
    "x-narthex-checksum": body.checksum(),
    "x-narthex-next": positionText(merged.position()),
  });
  res.end();
}

class Body {
  count = 0;
  private readonly options: ExportOptions;
  private readonly res: ServerResponse;
  private readonly hash = createHash("sha256");
  private runs: Run[] = [];
  private gathered = 0;
  private opened = false;

  constructor(options: ExportOptions) {
    this.options = options;
    this.res = options.exchange.res;
  }

  /** True: there is enough for a flush. */
  add(run: Run): boolean {
    this.count += run.to - run.from;
    this.runs.push(run);
    this.gathered += run.byteLength;
    return this.gathered >= chunkBytes;
  }

  /** False: nobody reads any more. */
  async flush(): Promise<boolean> {
    if (this.runs.length === 0) return true;
    const bytes = this.options.ndjson ? this.lines() : this.elements();
    this.runs = [];
    this.gathered = 0;
    this.opened = true;
    // In pieces, so that also a slow reader is seen to move.
    for (let at = 0; at < bytes.length; at += chunkBytes) {
      if (!(await this.write(bytes.subarray(at, at + chunkBytes)))) return false;
    }
    return true;
  }

  async close(): Promise<boolean> {
    if (!(await this.flush())) return false;
    if (this.options.ndjson) return true;
    return this.write(Buffer.from(this.opened ? "]" : "[]"));
  }

  checksum(): string {
    return this.hash.digest("hex");
  }

  private lines(): Uint8Array {
    // The lines of a single partition come page by page and go out as they are.
    if (this.runs.length === 1) return runBytes(this.runs[0]);
    const chunk = Buffer.allocUnsafe(this.gathered);
    let at = 0;
    for (const run of this.runs) {
      chunk.set(runBytes(run), at);
      at += run.byteLength;
    }
    return chunk;
  }

  /** What stands before the first element of the chunk takes the place of the newline behind its last. */
  private elements(): Uint8Array {
    const chunk = Buffer.allocUnsafe(this.gathered);
    chunk.write(this.opened ? "," : "[", 0);
    copyJoined(this.runs, chunk, 1);
    return chunk;
  }

  private write(chunk: Uint8Array): Promise<boolean> {
    const { res } = this;
    if (res.destroyed) return Promise.resolve(false);
    this.hash.update(chunk);
    if (res.write(chunk)) return Promise.resolve(true);
    return new Promise((resolve) => {
      const settle = (alive: boolean) => {
        timer.cancel();
        res.off("drain", onDrain).off("close", onClose);
        resolve(alive);
      };
      const onDrain = () => settle(true);
      const onClose = () => settle(false);
      const timer = this.options.clock.after(
        this.options.stalledMs,
        () => {
          this.options.log.warn("export cut short", { topic: this.options.topic, reason: "its reader takes nothing" });
          res.destroy();
          settle(false);
        },
        { background: true },
      );
      res.on("drain", onDrain).on("close", onClose);
    });
  }
}
