// What is installed is what was tested: the lock file names every package by a hash of its content, and no place to fetch it from, so
// that it holds on any mirror and no entry can point elsewhere.

import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";

interface Entry {
  readonly version?: string;
  readonly integrity?: string;
  readonly resolved?: string;
  readonly link?: boolean;
  readonly dependencies?: Record<string, string>;
  readonly devDependencies?: Record<string, string>;
}

interface Lock {
  readonly lockfileVersion: number;
  readonly packages: Record<string, Entry>;
}

interface Manifest {
  readonly dependencies: Record<string, string>;
  readonly devDependencies: Record<string, string>;
}

function faultsOf(lock: Lock, manifest: Manifest): string[] {
  const faults: string[] = [];
  const { "": root, ...packages } = lock.packages;
  for (const list of ["dependencies", "devDependencies"] as const) {
    if (JSON.stringify(root?.[list]) !== JSON.stringify(manifest[list])) faults.push(`package.json has other ${list}`);
    for (const [name, range] of Object.entries(manifest[list])) {
      if (packages[`node_modules/${name}`] === undefined) faults.push(`${name} is not locked`);
      if (!/^[\^~]?\d+\.\d+\.\d+$/.test(range)) faults.push(`${name} is asked for as ${range}, which is no version`);
    }
  }
  for (const [path, { version, integrity, resolved, link }] of Object.entries(packages)) {
    if (!path.startsWith("node_modules/") || link === true) faults.push(`${path} is not a package of the registry`);
    if (!/^\d+\.\d+\.\d+/.test(version ?? "")) faults.push(`${path} has no version`);
    if (!/^sha512-[A-Za-z0-9+/]{86}==$/.test(integrity ?? "")) faults.push(`${path} has no sha512`);
    if (resolved !== undefined) faults.push(`${path} names a place to fetch it from`);
  }
  return faults;
}

test("a package without a hash, from another place, or not locked is found", () => {
  const sha = `sha512-${"A".repeat(86)}==`;
  const manifest: Manifest = { dependencies: { ws: "^8.0.0" }, devDependencies: {} };
  const lockOf = (entry: Entry, path = "node_modules/ws"): Lock => ({
    lockfileVersion: 3,
    packages: { "": { ...manifest }, [path]: entry },
  });
  assert.equal(faultsOf(lockOf({ version: "8.0.0", integrity: sha }), manifest), []);
  assert.is(faultsOf(lockOf({ version: "8.0.0" }), manifest).length, 1);
  assert.is(faultsOf(lockOf({ version: "8.0.0", integrity: "sha1-abc" }), manifest).length, 1);
  assert.is(
    faultsOf(lockOf({ version: "8.0.0", integrity: sha, resolved: "https://x.example/ws.tgz" }), manifest).length,
    1,
  );
  assert.is(faultsOf(lockOf({ version: "8.0.0", integrity: sha, link: true }), manifest).length, 1);
  assert.is(faultsOf(lockOf({ version: "8.0.0", integrity: sha }, "node_modules/other"), manifest).length, 1);
  const loose = { ...manifest, dependencies: { ws: "*" } };
  assert.is(faultsOf(lockOf({ version: "8.0.0", integrity: sha }), loose).length, 2);
});

test("every dependency is locked by its content", () => {
  const read = (path: string) => JSON.parse(readFileSync(path, "utf8"));
  const lock = read("package-lock.json") as Lock;
  assert.is(lock.lockfileVersion, 3);
  assert.ok(Object.keys(lock.packages).length > 50);
  assert.equal(faultsOf(lock, read("package.json") as Manifest), []);
});

test.run();
