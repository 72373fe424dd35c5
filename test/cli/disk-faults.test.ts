import { test } from "uvu";
import * as assert from "uvu/assert";
import { CliError } from "../../src/cli/context.ts";
import { unreadable, unwritable } from "../../src/cli/disk-faults.ts";

function said(handle: (error: Error) => never, error: Error): [string, number | undefined] {
  try {
    return handle(error);
  } catch (thrown) {
    return [(thrown as Error).message, thrown instanceof CliError ? thrown.exitCode : undefined];
  }
}

const refused = (code: string) =>
  Object.assign(new Error(`${code}: x, open 'out/a.nd.part.json.tmp'`), { code, syscall: "open" });

test("what the disk refuses is a line about the file that the user named", () => {
  const lines: [(error: Error) => never, string, string, number][] = [
    [unwritable("out/a.nd"), "ENOENT", "out does not exist", 4],
    [unwritable("out/a.nd"), "EACCES", "out/a.nd cannot be written: permission denied", 1],
    [unwritable("out/a.nd"), "ENOSPC", "out/a.nd cannot be written: the disk is full", 1],
    [
      unwritable("out/a.nd", "; use stdin"),
      "EROFS",
      "out/a.nd cannot be written: it is on a disk that is read-only; use stdin",
      1,
    ],
    [unwritable("out/a.nd"), "EWEIRD", "out/a.nd cannot be written: EWEIRD", 1],
    [unreadable("out/a.nd"), "ENOENT", "out/a.nd does not exist", 4],
    [unreadable("out/a.nd"), "EACCES", "out/a.nd cannot be read: permission denied", 1],
  ];
  for (const [handle, code, line, exitCode] of lines) assert.equal(said(handle, refused(code)), [line, exitCode]);
});

test("what is not of the disk goes on as it is", () => {
  assert.equal(said(unwritable("a"), new CliError("a exists")), ["a exists", 1]);
  assert.equal(said(unwritable("a"), new TypeError("bug")), ["bug", undefined]);
});

test.run();
