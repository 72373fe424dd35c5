import { test } from "uvu";
import * as assert from "uvu/assert";
import { CliError } from "../../src/cli/context.ts";
import { idPlace, placeText, readPlace, subscribeFrom } from "../../src/cli/place.ts";

const now = Date.parse("2026-05-01T12:00:00.000Z");
const read = (text: string) => readPlace("--from", text, now);

test("a place is told by its form", () => {
  assert.equal(read("earliest"), { kind: "earliest" });
  assert.equal(read("latest"), { kind: "latest" });
  assert.equal(read("10m"), { kind: "ts", ts: now - 600_000 });
  assert.equal(read("2026-05-01"), { kind: "ts", ts: Date.parse("2026-05-01") });
  assert.equal(read("0:12"), { kind: "offsets", offsets: "0:12" });
  assert.equal(read("1:88,0:1234"), { kind: "offsets", offsets: "1:88,0:1234" });
  assert.equal(read("order:1"), { kind: "id", id: "order:1" });
  const made = "0199c82c-f039-7000-8000-00000500004d";
  assert.equal(read(made), { kind: "id", id: made });
});

test("a position that is none is an id, and a bare number is asked back", () => {
  assert.equal(read("0:1:2"), { kind: "id", id: "0:1:2" });
  assert.equal(read("99:1"), { kind: "id", id: "99:1" }, "there is no partition 99");
  try {
    read("17");
    assert.unreachable();
  } catch (error) {
    assert.instance(error, CliError);
    assert.is((error as CliError).exitCode, 2);
    assert.match((error as CliError).message, "0:17");
    assert.match((error as CliError).message, "--id 17");
  }
  assert.equal(idPlace("--id", "17"), { kind: "id", id: "17" });
  assert.throws(() => read("a b"), /--from is "a b": allowed are earliest/);
});

test("a place becomes the options of a subscription, and words", () => {
  assert.equal(subscribeFrom(read("earliest")), { from: "earliest" });
  assert.equal(subscribeFrom(read("0:3")), { from: "offsets", offsets: "0:3" });
  assert.equal(subscribeFrom(read("order:1")), { from: "afterId", afterId: "order:1" });
  assert.equal(subscribeFrom(read("1h")), { from: "ts", ts: now - 3_600_000 });
  assert.is(placeText(read("order:1")), "behind the event order:1");
  assert.match(placeText(read("1h")), "2026-05-01T11:00:00.000Z");
});

test.run();
