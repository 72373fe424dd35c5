import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  byteCount,
  checkGroup,
  checkPublishTopic,
  checkTopic,
  collect,
  collectHeader,
  query,
  wholeNumber,
} from "../../src/cli/arguments.ts";
import { CliError } from "../../src/cli/context.ts";

function usageLine(make: () => unknown): string {
  try {
    make();
  } catch (error) {
    assert.instance(error, CliError);
    assert.is((error as CliError).exitCode, 2);
    assert.not.match((error as CliError).message, "\n");
    return (error as CliError).message;
  }
  throw new Error("nothing was refused");
}

test("whole numbers are within their bounds", () => {
  assert.is(wholeNumber("--max", 1)("17"), 17);
  for (const text of ["0", "-1", "1.5", "", "many", "1e3", "99999999999999999999"]) {
    assert.match(
      usageLine(() => wholeNumber("--max", 1)(text)),
      /^--max is ".*": allowed are whole numbers from 1$/,
    );
  }
  assert.match(
    usageLine(() => wholeNumber("--partitions", 1, 64)("65")),
    "from 1 to 64",
  );
});

test("bytes have units or none", () => {
  const read = byteCount("--retention-bytes");
  const good: [string, number][] = [
    ["500000", 500_000],
    ["10MB", 10_000_000],
    ["1.5GB", 1_500_000_000],
    ["2GiB", 2 * 1024 ** 3],
    ["1kb", 1000],
  ];
  for (const [text, bytes] of good) assert.is(read(text), bytes, text);
  for (const text of ["", "0", "MB", "10XB", "-1", "10 MB"]) {
    assert.match(
      usageLine(() => read(text)),
      "10MB",
    );
  }
});

test("headers are name=value and may be repeated", () => {
  assert.equal(collectHeader("a=1", undefined), { a: "1" });
  assert.equal(collectHeader("b=x=y", { a: "1" }), { a: "1", b: "x=y" });
  assert.equal(collectHeader("empty=", undefined), { empty: "" });
  for (const text of ["", "a", "=1", "__proto__=1", `${"n".repeat(129)}=1`]) {
    assert.match(
      usageLine(() => collectHeader(text, undefined)),
      /^--header/,
    );
  }
  assert.equal(collect("b", collect("a", undefined)), ["a", "b"]);
});

test("names are checked before any node is asked", () => {
  assert.is(checkTopic("orders.eu"), "orders.eu");
  assert.is(checkTopic("orders.dlq.billing"), "orders.dlq.billing");
  assert.is(checkGroup("billing"), "billing");
  assert.match(
    usageLine(() => checkTopic("a b")),
    "topic",
  );
  assert.match(
    usageLine(() => checkTopic("")),
    "topic",
  );
  assert.match(
    usageLine(() => checkPublishTopic("orders.dlq.billing")),
    "dlq",
  );
  assert.match(
    usageLine(() => checkGroup("a/b")),
    "group",
  );
});

test("a query leaves out what is not given and escapes the rest", () => {
  assert.is(query({ topic: "a", after: undefined, key: "x&y=ä", limit: 3 }), "topic=a&key=x%26y%3D%C3%A4&limit=3");
});

test.run();
