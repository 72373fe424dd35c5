// PROTOCOL.md against the source: a client author must be able to trust every table and every example in it.

import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { statusOf } from "../../src/front/http-exchange.ts";
import { batchOps, decodeClientBatch, decodeServerBatch } from "../../src/protocol/batch.ts";
import { eventBounds, frameBounds } from "../../src/protocol/bounds.ts";
import { decodeFrame } from "../../src/protocol/decode.ts";
import { type Code, codes, isFailure } from "../../src/protocol/failure.ts";
import { clientOps, type ServerOp, serverOps } from "../../src/protocol/frames.ts";
import { makeId, parseId } from "../../src/protocol/ids.ts";
import { bytesOfHex } from "./bytes.ts";

const text = readFileSync("PROTOCOL.md", "utf8");
const limits = { maxPayload: 1_048_576, batchEventsMax: 10_000 };

/** The rows of the table whose first heading is this, cell by cell. */
function table(heading: string): string[][] {
  const lines = text.split("\n");
  const first = lines.findIndex((line) => line.startsWith(`| ${heading} |`));
  assert.ok(first >= 0, `no table of ${heading}`);
  const rows: string[][] = [];
  for (const line of lines.slice(first + 2)) {
    if (!line.startsWith("|")) break;
    rows.push(
      line
        .split("|")
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );
  }
  return rows;
}

/** Lines of the examples in fences of this language, by who says them. */
function examples(language: string): { sent: string[]; got: string[] } {
  const blocks = [...text.matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\``, "gm"))].map(
    ([, block]) => block,
  );
  const lines = blocks.flatMap((block) => block.split("\n"));
  const after = (arrow: string) => lines.filter((line) => line.startsWith(arrow)).map((line) => line.slice(2));
  return { sent: after("→ "), got: after("← ") };
}

const json = examples("json");
const hex = examples("hex");

function opOf(line: string): string {
  return (JSON.parse(line) as { op: string }).op;
}

test("every op has a heading, and every heading of an op is one", () => {
  const headings = [...text.matchAll(/^### (?:0x([0-9a-f]{2}) )?([A-Z]+)$/gm)];
  const plain = headings.filter(([, number]) => number === undefined).map(([, , op]) => op);
  assert.equal(plain.sort(), [...clientOps, ...serverOps].sort());
  const binary = headings.flatMap(([, number, op]) =>
    number === undefined ? [] : [[op, Number.parseInt(number, 16)]],
  );
  assert.equal(Object.fromEntries(binary), { ...batchOps });
});

test("the table of codes is the list of the source, in its order, with its facts", () => {
  assert.equal(
    table("code").map(([code, , retry, status]) => [code, retry, status]),
    Object.entries(codes).map(([code, retryable]) => [
      `\`${code}\``,
      retryable ? "yes" : "no",
      `${statusOf[code as Code]}`,
    ]),
  );
});

test("the table of bounds is that of the source", () => {
  assert.equal(Object.fromEntries(table("bound").map(([name, value]) => [name.slice(1, -1), Number(value)])), {
    ...eventBounds,
    ...frameBounds,
  });
});

test("every frame in an example is one that the node takes", () => {
  for (const line of json.sent) {
    const outcome = decodeFrame(line, limits);
    assert.ok(!("failure" in outcome), `${line} → ${JSON.stringify(outcome)}`);
  }
  assert.equal(new Set(json.sent.map(opOf)), new Set(clientOps));
});

test("every answer in an example is one that the node gives", () => {
  for (const line of json.got) {
    const frame = JSON.parse(line) as { op: string; code?: string };
    assert.ok(serverOps.includes(frame.op as ServerOp), line);
    if (frame.op === "ERR") assert.ok((frame.code ?? "") in codes, line);
  }
  assert.equal(new Set(json.got.map(opOf)), new Set(serverOps));
});

test("the binary examples say what the text says of them", () => {
  const sent = hex.sent.map((line) => decodeClientBatch(bytesOfHex(line), limits));
  const got = hex.got.map((line) => decodeServerBatch(bytesOfHex(line)));
  for (const outcome of [...sent, ...got]) assert.not(isFailure(outcome), JSON.stringify(outcome));
  const [publish, settle] = sent;
  const [published, events] = got;
  if (isFailure(publish) || isFailure(settle) || isFailure(published) || isFailure(events)) throw new Error("refused");
  if (publish.op !== "PUBLISH" || settle.op !== "SETTLE" || published.op !== "PUBLISHED" || events.op !== "EVENTS")
    throw new Error("in another order");
  assert.equal([publish.handle, publish.corr, publish.pack.count], [1, 16, 1]);
  assert.equal(new TextDecoder().decode(publish.pack.payload(0)), "7");
  assert.equal([published.corr, published.runs.length], [16, 1]);
  const { partition, offset, storedAt, salt, status } = published.runs[0];
  assert.is(status, "stored");
  assert.equal(
    [events.partition, events.firstOffset, events.storedAt, events.salt],
    [partition, offset, storedAt, salt],
  );
  assert.equal(settle.runs, [{ partition, offset, count: 1, epoch: events.epoch, token: events.token }]);
  assert.equal([settle.handle, settle.corr, settle.verb], [events.handle, 17, "ack"]);
  // The event at the top of the document has the id of that place.
  const first = text.match(/"id": "([0-9a-f-]{36})"/)?.[1] ?? "";
  assert.is(makeId(storedAt, offset, partition, salt), first);
  assert.ok(parseId(first));
});

test.run();
