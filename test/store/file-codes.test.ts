import { constants } from "node:os";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { codeOf, isFull, plainReason } from "../../src/store/log/files.ts";

test("a quota that is used up is a full disk, though Node has no name for it", () => {
  const error = Object.assign(new Error("UNKNOWN: unknown error, write"), {
    code: "UNKNOWN",
    errno: -constants.errno.EDQUOT,
    syscall: "write",
  });
  assert.is(codeOf(error), "EDQUOT");
  assert.ok(isFull(error));
  assert.is(plainReason(error), "because the disk is full (EDQUOT)");
});

test("an error without a name of the kernel's keeps what it has", () => {
  assert.is(codeOf(Object.assign(new Error("no such number"), { code: "UNKNOWN", errno: -4000 })), "UNKNOWN");
  assert.is(codeOf(Object.assign(new Error("full"), { code: "ENOSPC", errno: -28 })), "ENOSPC");
  assert.is(codeOf(new Error("a bug")), "EUNKNOWN");
});

test.run();
