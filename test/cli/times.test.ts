import { test } from "uvu";
import * as assert from "uvu/assert";
import { CliError } from "../../src/cli/context.ts";
import { durationOption, durationText, parseDuration, parseTime, timeOption, timeText } from "../../src/cli/times.ts";

const now = Date.parse("2026-05-01T12:00:00.000Z");

test("durations have units, and may have several", () => {
  const good: [string, number][] = [
    ["250ms", 250],
    ["90s", 90_000],
    ["10m", 600_000],
    ["2h", 7_200_000],
    ["7d", 604_800_000],
    ["1w", 604_800_000],
    ["1h30m", 5_400_000],
    ["1.5h", 5_400_000],
    ["0s", 0],
  ];
  for (const [text, ms] of good) assert.is(parseDuration(text), ms, text);
  for (const text of ["", "10", "m", "10 m", "-5m", "5x", "10m!", "1e3s", "99999999999999999d"]) {
    assert.is(parseDuration(text), undefined, JSON.stringify(text));
  }
});

test("a time is a duration ago, a date, or milliseconds", () => {
  const good: [string, number][] = [
    ["now", now],
    ["10m", now - 600_000],
    ["0s", now],
    ["2026-04-30T23:59:59Z", Date.parse("2026-04-30T23:59:59Z")],
    ["2026-04-30T23:59:59.250Z", Date.parse("2026-04-30T23:59:59.250Z")],
    ["2026-05-01T14:00+02:00", now],
    ["2026-05-01 14:00+0200", now],
    ["2026-05-01", Date.parse("2026-05-01T00:00:00Z")],
    ["1777636800000", 1777636800000],
    ["8640000000000000", 8640000000000000],
  ];
  for (const [text, ms] of good) assert.is(parseTime(text, now), ms, text);
  const bad = [
    "",
    "yesterday",
    "10",
    "17776368000",
    "8640000000000001",
    "2026",
    "2026-13-01",
    "2026-05-01T25:00Z",
    "May 1",
    "-10m",
    "1969-12-31T00:00:00Z",
  ];
  for (const text of bad) assert.is(parseTime(text, now), undefined, JSON.stringify(text));
  assert.is(parseTime("99w", 1000), 0, "never before 1970");
});

test("a wrong time or duration is one line that names the option and what is allowed", () => {
  const wrong = (make: () => unknown, pattern: RegExp) => {
    try {
      make();
    } catch (error) {
      assert.instance(error, CliError);
      assert.is((error as CliError).exitCode, 2);
      assert.match((error as CliError).message, pattern);
      return;
    }
    assert.unreachable();
  };
  wrong(() => timeOption("--until", "soon", now), /^--until is "soon": allowed are 10m/);
  wrong(() => durationOption("--backoff", "5"), /^--backoff is "5": allowed are durations such as 90s/);
  wrong(() => durationOption("--backoff", "0s"), /^--backoff is "0s"/);
});

test("times are shown in UTC, durations by their largest units", () => {
  assert.is(timeText(now), "2026-05-01T12:00:00.000Z");
  const shown: [number, string][] = [
    [0, "0ms"],
    [999.4, "999ms"],
    [1000, "1s"],
    [12_345, "12.3s"],
    [59_999, "59.9s"],
    [60_000, "1m"],
    [3_900_000, "1h 5m"],
    [604_800_000, "7d"],
    [694_800_000, "8d 1h"],
  ];
  for (const [ms, text] of shown) assert.is(durationText(ms), text);
});

test.run();
