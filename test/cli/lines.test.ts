// How events, tables and failures look.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { CliError } from "../../src/cli/context.ts";
import { eventPrinter } from "../../src/cli/event-lines.ts";
import { explainFailure, oneLine, unreachableLine } from "../../src/cli/failures.ts";
import { painter, paintJson } from "../../src/cli/paint.ts";
import { bytesText, count, cut, tableLines, textWidth } from "../../src/cli/table.ts";
import { refused, TimeoutError } from "../../src/client/errors.ts";

const event = {
  id: "order:1",
  ts: Date.parse("2026-05-01T12:00:00.000Z"),
  topic: "orders",
  partition: 0,
  offset: 5,
  key: "customer-7",
  headers: { source: "import" },
  tags: ["eu"],
  payload: { n: 1, text: "abc" },
};

function printed(
  options: { json?: boolean; color?: boolean; columns?: number; full?: boolean },
  events: readonly object[] = [event],
  extra?: Record<string, unknown>,
): string[] {
  const lines: string[] = [];
  const { json = false, color = false, columns, full } = options;
  const print = eventPrinter(
    { json, color, out: (line) => lines.push(line) },
    { topics: ["orders", "payments"], columns, full: full === true },
  );
  for (const one of events) print(one as typeof event, extra);
  return lines;
}

test("for programs an event is one JSON line", () => {
  assert.equal(
    printed({ json: true }).map((line) => JSON.parse(line)),
    [event],
  );
  assert.equal(JSON.parse(printed({ json: true }, [event], { attempt: 2 })[0]), { ...event, attempt: 2 });
});

test("for people the columns are aligned, and a pipe gets the whole payload", () => {
  const { key: _, ...keyless } = event;
  const long = { ...event, topic: "payments", payload: "x".repeat(300) };
  const lines = printed({}, [event, keyless, long]);
  assert.is(lines[0], `2026-05-01T12:00:00.000Z  orders    customer-7  {"n":1,"text":"abc"}`);
  assert.is(lines[1], `2026-05-01T12:00:00.000Z  orders    -           {"n":1,"text":"abc"}`);
  assert.is(lines[2], `2026-05-01T12:00:00.000Z  payments  customer-7  "${"x".repeat(300)}"`);
});

test("a terminal gets one line as wide as it is, or everything with --full", () => {
  const wide = { ...event, payload: { list: Array.from({ length: 50 }, (_, i) => i) } };
  const [line] = printed({ columns: 80 }, [wide]);
  assert.is(textWidth(line), 80);
  assert.ok(line.endsWith("…"));
  assert.match(printed({ columns: 120 })[0], '{ "n": 1, "text": "abc" }');
  const full = printed({ columns: 80, full: true }, [wide]).join("\n");
  assert.match(full, "49");
  for (const part of ["id: order:1", "at: 0:5", "tags: eu", "source: import"]) assert.match(full, part);
});

test("a later attempt is shown", () => {
  assert.not.match(printed({}, [event], { attempt: 1 })[0], "attempt");
  assert.match(printed({}, [event], { attempt: 3 })[0], "(attempt 3) {");
});

test("nothing that a publisher sends moves the cursor of the terminal", () => {
  const nasty = {
    ...event,
    key: "a\u001b[2Jb\nc\u009bd",
    headers: { "x\u001b]0;t\u0007": "1\r2" },
    payload: "\u001b[31m\u009b31m\u2028",
  };
  const lines = printed({ columns: 120, full: true }, [nasty]);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: those must not be there
  for (const line of lines) assert.not.match(line, /[\u0000-\u001f\u007f-\u009f\u2028]/);
  assert.equal(JSON.parse(lines[0].slice(lines[0].indexOf('"'))), nasty.payload, "and it is still JSON");
});

test("colours are there or not at all", () => {
  const paint = painter({ color: true });
  assert.is(painter({ color: false })("red", "x"), "x");
  assert.is(paint("red", "x"), "\u001b[31mx\u001b[0m");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: colours begin with it
  const plain = (text: string) => text.replace(/\u001b\[\d+m/g, "");
  const text = '{ "a": [1, -2.5e3, true, null, "b: \\"c\\""], "cut off';
  assert.is(plain(paintJson(text, paint)), text);
  assert.is.not(paintJson(text, paint), text);
  const coloured = printed({ color: true, columns: 120 })[0];
  assert.is(plain(coloured), printed({ columns: 120 })[0]);
});

test("tables align, numbers to the right", () => {
  assert.equal(
    tableLines(
      ["topic", "events", "last"],
      [
        ["a", 1234567, "x"],
        ["日本", 5, "y\u001b[2J"],
      ],
    ),
    ["topic     events  last", "a      1,234,567  x", "日本           5  y [2J"],
  );
  assert.equal(tableLines(["a"], []), ["a"]);
  assert.is(cut("abcdef", 4), "abc…");
  assert.is(cut("日本語", 4), "日…");
  assert.is(cut("abcd", 4), "abcd");
  assert.is(count(1234.56), "1,234.6");
  const sizes: [number, string][] = [
    [0, "0 B"],
    [999, "999 B"],
    [1000, "1 kB"],
    [10_000_000_000, "10 GB"],
    [1_234_567, "1.2 MB"],
  ];
  for (const [bytes, text] of sizes) assert.is(bytesText(bytes), text);
});

test("every failure is one line and an exit code", () => {
  const table: [unknown, number, RegExp | undefined][] = [
    [new CliError("no\nsuch thing", 4), 4, /^no such thing$/],
    [refused({ code: "unknown_topic", msg: "there is no topic x" }), 4, /^there is no topic x \(unknown_topic\)$/],
    [refused({ code: "bad_topic", msg: "topic is wrong" }), 2, /^topic is wrong \(bad_topic\)$/],
    [refused({ code: "rate_limited", msg: "too fast" }), 1, /too fast/],
    [refused({ code: "bad_token", msg: "no" }), 1, /NARTHEX_TOKEN/],
    [refused({ code: "unauthorized", msg: "no" }), 1, /NARTHEX_TOKEN/],
    [new TimeoutError("timeout", "no connection"), 1, /no connection/],
    [new DOMException("stopped", "AbortError"), 130, undefined],
    [
      new TypeError("x is not a function\n    at y"),
      1,
      /^x is not a function at y \(set NARTHEX_DEBUG=1 for details\)$/,
    ],
    ["a string", 1, /^a string/],
  ];
  for (const [error, exitCode, pattern] of table) {
    const failure = explainFailure(error);
    assert.is(failure.exitCode, exitCode, String(error));
    if (pattern === undefined) assert.is(failure.line, undefined);
    else assert.match(failure.line ?? "", pattern);
  }
  assert.is(oneLine("a\u001b[2J\r\nb"), "a [2J b");
  assert.is(
    unreachableLine("http://127.0.0.1:8090", "ECONNREFUSED"),
    "no node answers at http://127.0.0.1:8090: is it running? start one with: npx narthex",
  );
  assert.match(unreachableLine("http://nowhere", "ENOTFOUND"), "(ENOTFOUND)");
});

test.run();
