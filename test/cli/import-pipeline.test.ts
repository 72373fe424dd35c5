// Publishing a file through a client that answers when the test says so.

import { createHash } from "node:crypto";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { readLine } from "../../src/cli/import-line.ts";
import { Pipeline, type PipelineEnd, type PipelineOptions } from "../../src/cli/import-pipeline.ts";
import type { ImportState } from "../../src/cli/import-state.ts";
import { Fingerprints } from "../../src/cli/import-verify.ts";
import type { EventClient, Published, PublishOptions } from "../../src/client/client.ts";
import { RefusedError } from "../../src/client/errors.ts";
import type { RawJson } from "../../src/client/raw-json.ts";
import { realClock } from "../../src/runtime/clock.ts";
import { eventually, within } from "../support/deadline.ts";

const emptySha = createHash("sha256").digest("hex");

function begin(over: Partial<ImportState> = {}): ImportState {
  return {
    version: 1,
    url: "http://127.0.0.1:8090",
    topic: "orders",
    createdAt: null,
    newIds: false,
    skipStored: false,
    nonce: "00",
    beganAt: 1,
    end: "0:100",
    begin: "0:100",
    mark: { bytes: 0, lines: 0, events: 0, skipped: 0, sha256: emptySha, position: "0:100" },
    ...over,
  };
}

interface Call {
  readonly id: string;
  readonly payload: string;
  readonly resolve: (result: Partial<Published>) => void;
  readonly reject: (error: Error) => void;
}

class Stage {
  readonly calls: Call[] = [];
  readonly saved: ImportState[] = [];
  readonly stop = new AbortController();
  /** Answers at once, as long as it is set. */
  prompt = true;
  private offset = 100;

  readonly client = {
    publish: (_topic: string, payload: RawJson, { id = "" }: PublishOptions) =>
      new Promise((resolve, reject) => {
        const call: Call = {
          id,
          payload: payload.text,
          resolve: (result) => resolve({ partition: 0, offset: this.offset++, ...result }),
          reject,
        };
        this.calls.push(call);
        if (this.prompt) call.resolve({});
      }),
  } as unknown as EventClient;

  pipeline(over: Partial<PipelineOptions> = {}): Pipeline {
    return new Pipeline({
      client: this.client,
      clock: realClock(),
      signal: this.stop.signal,
      state: begin(),
      hash: createHash("sha256"),
      read: (line) => (line.length === 0 ? undefined : readLine(line)),
      storedBefore: new Set(),
      stored: new Set(),
      rate: undefined,
      skip: undefined,
      save: async (state) => void this.saved.push(state),
      onProgress: () => undefined,
      ...over,
    });
  }
}

const lineOf = (n: number) => `{"id":"e${n}","ts":1,"payload":${n}}\n`;
const fileOf = (count: number, from = 0) => Array.from({ length: count }, (_, n) => lineOf(from + n)).join("");
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");

async function* bytesOf(text: string, size = 50_000): AsyncGenerator<Buffer> {
  const bytes = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

test("every line is published once, in order, and the end is marked", async () => {
  const stage = new Stage();
  const pipeline = stage.pipeline();
  const file = `${fileOf(5000)}\n${lineOf(5000).trim()}`;
  assert.equal(await pipeline.run(bytesOf(file)), { kind: "done" });
  assert.equal(
    stage.calls.map(({ id, payload }) => `${id} ${payload}`),
    Array.from({ length: 5001 }, (_, n) => `e${n} ${n}`),
  );
  assert.equal(pipeline.state.mark, {
    bytes: file.length,
    lines: 5002,
    events: 5001,
    skipped: 0,
    sha256: sha256(file),
    position: "0:5101",
  });
  assert.equal(stage.saved.at(-1), pipeline.state);
});

test("a mark never passes an event that is not confirmed", async () => {
  const stage = new Stage();
  stage.prompt = false;
  const pipeline = stage.pipeline();
  const ended = pipeline.run(bytesOf(fileOf(20_000)));
  await eventually(5000, "some are under way", () => stage.calls.length > 100);
  const held = stage.calls[100];
  // All but one are answered, over and over.
  let answered = 0;
  const answerOthers = () => {
    for (; answered < stage.calls.length; answered++)
      if (stage.calls[answered] !== held) stage.calls[answered].resolve({});
  };
  await eventually(5000, "it stops sending", () => {
    const before = stage.calls.length;
    answerOthers();
    return before === stage.calls.length && before >= 1000;
  });
  for (let i = 0; i < 50; i++) {
    answerOthers();
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.equal(
    stage.saved.map(({ mark }) => mark.events),
    [],
  );
  held.resolve({});
  stage.prompt = true;
  answerOthers();
  assert.equal(await within(5000, "the end", ended), { kind: "done" });
  const events = stage.saved.map(({ mark }) => mark.events);
  assert.equal(
    events,
    [...events].sort((a, b) => a - b),
  );
  assert.is(events.at(-1), 20_000);
  // Each mark is the beginning of a line, and its checksum is that of the file up to there.
  const file = fileOf(20_000);
  for (const { mark } of stage.saved) {
    assert.is(mark.bytes, fileOf(mark.events).length);
    assert.is(mark.sha256, sha256(file.slice(0, mark.bytes)));
  }
});

test("no event behind a mark stands before its position", async () => {
  const stage = new Stage();
  const pipeline = stage.pipeline();
  assert.equal(await pipeline.run(bytesOf(fileOf(30_000))), { kind: "done" });
  assert.ok(stage.saved.length > 2);
  for (const { mark } of stage.saved) {
    // Event n got the offset 100 + n.
    const next = Number(mark.position.split(":")[1]);
    assert.ok(next <= 100 + mark.events, `${mark.position} at ${mark.events}`);
    // And not much of what is confirmed has to be looked at again.
    assert.ok(next >= 100 + mark.events - 10_000, `${mark.position} at ${mark.events}`);
  }
});

test("an import that was cut goes on from its mark and leaves out what is stored", async () => {
  const stage = new Stage();
  const first = stage.pipeline();
  await first.run(bytesOf(fileOf(100)));
  const file = fileOf(200);
  const hash = createHash("sha256").update(file.slice(0, first.state.mark.bytes));
  const stored = new Set(["e100", "e101", "e103"]);
  const second = stage.pipeline({ state: first.state, hash, stored });
  stage.calls.length = 0;
  assert.equal(await second.run(bytesOf(file.slice(first.state.mark.bytes))), { kind: "done" });
  assert.equal(
    stage.calls.map(({ id }) => id),
    Array.from({ length: 100 }, (_, n) => `e${100 + n}`).filter((id) => !stored.has(id)),
  );
  assert.is(second.state.mark.events, 200);
  assert.is(second.state.mark.sha256, sha256(file));
});

test("a line that is no event stops it there: nothing behind it is published, and it can be gone on from", async () => {
  const stage = new Stage();
  const pipeline = stage.pipeline();
  const good = fileOf(10);
  const end = await pipeline.run(bytesOf(`${good}{"n":1}\n${fileOf(10, 10)}`));
  assert.equal(end, { kind: "bad", line: 11, fault: "is not an event: it has no payload" });
  assert.is(stage.calls.length, 10);
  assert.equal(pipeline.state.mark, {
    bytes: good.length,
    lines: 10,
    events: 10,
    skipped: 0,
    sha256: sha256(good),
    position: "0:110",
  });
});

test("lines that are no events are passed over where that was asked for", async () => {
  const stage = new Stage();
  const skipped: string[] = [];
  const pipeline = stage.pipeline({ skip: (line, fault) => void skipped.push(`${line} ${fault.slice(0, 11)}`) });
  await pipeline.run(bytesOf(`${lineOf(0)}oops\n${lineOf(1)}{}\n`));
  assert.equal(skipped, ["2 is not JSON", "4 is not an e"]);
  assert.equal(
    stage.calls.map(({ id }) => id),
    ["e0", "e1"],
  );
  assert.equal([pipeline.state.mark.events, pipeline.state.mark.skipped, pipeline.state.mark.lines], [2, 2, 4]);
});

test("a refusal stops it, what is under way is waited for, and the first line that was refused is named", async () => {
  const stage = new Stage();
  stage.prompt = false;
  const pipeline = stage.pipeline();
  const ended = pipeline.run(bytesOf(fileOf(5)));
  await eventually(5000, "all are under way", () => stage.calls.length === 5);
  const error = new RefusedError("forbidden", "no right to publish");
  stage.calls[3].reject(error);
  stage.calls[2].reject(error);
  for (const n of [0, 1, 4]) stage.calls[n].resolve({});
  assert.equal(await within(5000, "the end", ended), { kind: "refused", line: 3, error });
  assert.is(pipeline.state.mark.events, 0);
});

test("a state that cannot be written ends it", async () => {
  const stage = new Stage();
  const full = new Error("ENOSPC: no space left on device");
  const pipeline = stage.pipeline({ save: () => Promise.reject(full) });
  const end: PipelineEnd = await pipeline.run(bytesOf(fileOf(20_000)));
  assert.equal(end, { kind: "unsaved", error: full });
});

test("events that the target had before are counted, and reading back begins with them", async () => {
  const stage = new Stage();
  stage.prompt = false;
  const pipeline = stage.pipeline();
  const ended = pipeline.run(bytesOf(fileOf(4)));
  await eventually(5000, "all are under way", () => stage.calls.length === 4);
  stage.calls[0].resolve({ offset: 30, duplicate: true });
  stage.calls[1].resolve({ offset: 40, duplicate: true });
  stage.calls[2].resolve({});
  // Sent again by the client: stored a moment ago by this very import.
  stage.calls[3].resolve({ offset: 101, duplicate: true });
  await ended;
  assert.is(pipeline.storedBefore, 2);
  assert.equal([pipeline.state.begin, pipeline.state.mark.position], ["0:30", "0:103"]);
});

test("a rate is kept", async () => {
  const stage = new Stage();
  const startedAt = performance.now();
  await stage.pipeline({ rate: 200 }).run(bytesOf(fileOf(60)));
  const ms = performance.now() - startedAt;
  assert.ok(ms >= 280, `${ms}`);
});

test("fingerprints are taken once each, however many there are", () => {
  const prints = new Fingerprints();
  for (let n = 0; n < 20_000; n++) prints.add(`event ${n}`, n);
  prints.add("event 5", 20_000);
  assert.equal([prints.size, prints.left], [20_000, 20_000]);
  assert.is(prints.take("event 20000"), -1);
  for (let n = 19_999; n >= 0; n--) assert.is(prints.take(`event ${n}`), n);
  assert.is(prints.take("event 7"), -1);
  assert.is(prints.left, 0);
  prints.add("another", 3);
  assert.ok(prints.has("another"));
  assert.not(prints.has("event 7"));
});

test.run();
