// Real threads of the pool, and the moment at which a dead one can do no more harm.

import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { realClock } from "../../src/runtime/clock.ts";
import { createLogger } from "../../src/runtime/log.ts";
import { Pool } from "../../src/runtime/pool.ts";
import { within } from "../support/deadline.ts";
import { hostLimits } from "../support/host-stage.ts";

test("a dead thread is gone only when its last write is over", async () => {
  const folder = mkdtempSync(join(tmpdir(), "narthex-pool-"));
  const path = join(folder, "file");
  const clock = realClock();
  const pool = new Pool({
    workers: 1,
    hostUrl: new URL("./support-last-write.entry.js", import.meta.url),
    heapMb: undefined,
    clock,
    log: createLogger("silent", () => undefined, clock),
  });
  const thread = pool.launch(
    { worker: 0, shards: 1, store: { kind: "log", path }, limits: hostLimits, reportTells: 1, testing: true },
    () => undefined,
  );
  let reason = "";
  await within(
    20_000,
    "the death notice",
    thread.ended.catch((error: Error) => {
      reason = error.message;
    }),
  );
  assert.is(reason, "died while writing");
  await within(60_000, "the exit", thread.gone());
  assert.is(statSync(path).size, 128 * 1024 * 1024);
  thread.close();
  await within(20_000, "destroy", pool.destroy());
  rmSync(folder, { recursive: true });
});

test.run();
