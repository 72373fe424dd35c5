// Libraries for LD_PRELOAD, compiled from C where a test needs them: they stand between a node and the kernel.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/**
 * The library made from `test/<source>`, or why there is none. Kept between runs by what its source says. Where the tests must not
 * be skipped (NARTHEX_REQUIRE_CC), a missing compiler throws.
 */
export function compilePreload(source: string): { readonly path: string } | { readonly missing: string } {
  const text = readFileSync(join("test", source));
  const folder = join(tmpdir(), "narthex-preload");
  const path = join(folder, `${createHash("sha256").update(text).digest("hex").slice(0, 16)}.so`);
  if (existsSync(path)) return { path };
  mkdirSync(folder, { recursive: true });
  const fresh = `${path}.${process.pid}.tmp`;
  try {
    execFileSync("cc", ["-shared", "-fPIC", "-O2", "-Wall", "-o", fresh, join("test", source), "-ldl", "-lpthread"], {
      stdio: ["ignore", "ignore", "pipe"],
    });
  } catch (error) {
    const missing = (error as NodeJS.ErrnoException).code === "ENOENT";
    if (!missing || process.env.NARTHEX_REQUIRE_CC !== undefined) throw error;
    return { missing: "no C compiler (cc) on the PATH" };
  }
  renameSync(fresh, path);
  return { path };
}
