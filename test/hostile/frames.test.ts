// Thousands of frames, good, wrong and broken, over real sockets: each is answered once with a code that fits, and a client that behaves
// notices nothing.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { runCampaign } from "./campaign.ts";
import { Target } from "./target.ts";

test("4,000 frames of a grammar: one fitting answer each, nothing internal, the control client's events as they were", async () => {
  const target = await Target.start();
  try {
    const { sent, tally, slowestMs } = await runCampaign({ target, seed: 1, frames: 4000, msMax: 10_000 });
    assert.ok(sent >= 4000);
    const kinds = new Set([...tally.keys()].map((name) => name.split(" → ")[0]));
    for (const kind of [
      "good PUBLISH",
      "good SETTLE",
      "good batch",
      "wrong opts",
      "wrong topic",
      "hit",
      "hit batch",
      "hit SETTLE",
    ])
      assert.ok(kinds.has(kind), `${kind} was never sent`);
    for (const code of [
      "bad_json",
      "bad_frame",
      "bad_topic",
      "bad_group",
      "bad_option",
      "too_large",
      "bad_token",
      "lease_lost",
      "unknown_id",
    ])
      assert.ok(
        [...tally.keys()].some((name) => name.endsWith(` → ${code}`)),
        `${code} was never answered`,
      );
    console.log(
      `measured: ${sent} frames; the slowest publish, delivery and ack of the control client ${slowestMs.toFixed(0)} ms`,
    );
  } finally {
    await target.stop();
  }
});

test.run();
