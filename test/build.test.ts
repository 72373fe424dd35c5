// What the build does not let into the client for browsers, shown a bad source each, and what goes into the image.

import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { test } from "uvu";
import * as assert from "uvu/assert";

interface Builder {
  readonly browserBytesMax: number;
  bundleBrowserClient(entry: string, logLevel: "silent"): Promise<{ path: string; text: string }[]>;
  sizeLine(bytes: Uint8Array): string;
}

const builder = (await import(pathToFileURL(resolve("build.mjs")).href)) as Builder;
const folder = mkdtempSync(join(tmpdir(), "narthex-build-"));

async function bundle(source: string): Promise<string> {
  const entry = join(folder, "client.ts");
  writeFileSync(entry, source);
  writeFileSync(join(folder, "dial-node.ts"), 'import { WebSocket } from "ws"; export const dial = () => WebSocket;');
  writeFileSync(join(folder, "dial-browser.ts"), 'export const dial = () => "of the browser";');
  mkdirSync(join(folder, "node_modules", "known"), { recursive: true });
  writeFileSync(join(folder, "node_modules", "known", "index.js"), "export const known = 1;");
  const outputs = await builder.bundleBrowserClient(entry, "silent");
  return outputs.find(({ path }) => path.endsWith(".js"))!.text;
}

test("the socket of Node is replaced by that of the browser", async () => {
  const text = await bundle('import { dial } from "./dial-node.ts"; export const connect = () => dial();');
  assert.match(text, "of the browser");
  assert.not.match(text, "WebSocket");
});

test("a Node built-in, a package and a global of Node end the build", async () => {
  const bad: [string, RegExp][] = [
    ['import { hostname } from "node:os"; export const a = hostname;', /node:os does not exist in a browser/],
    ['import { hostname } from "os"; export const a = hostname;', /os does not exist in a browser/],
    ['import { known } from "known"; export const a = known;', /known does not exist in a browser/],
    ['export const a = () => import("node:os");', /node:os does not exist in a browser/],
    ["export const a = (text: string) => Buffer.from(text);", /uses Buffer, which only Node has/],
    ["export const a = () => process.version;", /uses process, which only Node has/],
  ];
  for (const [source, pattern] of bad) {
    const error = await bundle(source).catch((reason: Error) => reason);
    assert.ok(error instanceof Error, source);
    assert.match(error.message, pattern);
  }
  await bundle("export const a = (x: { process: string }) => `${x.process} Buffer`;");
});

test("errors of the shortened client have the names that are documented", async () => {
  const outputs = await builder.bundleBrowserClient(resolve("src/client/errors.ts"), "silent");
  const { text } = outputs.find(({ path }) => path.endsWith(".js"))!;
  const built = join(folder, "errors.mjs");
  writeFileSync(built, text);
  const errors = (await import(pathToFileURL(built).href)) as Record<string, unknown>;
  const names = Object.keys(errors).filter((name) => name.endsWith("Error"));
  assert.equal(names.length, 7);
  for (const name of names) {
    const made = new (errors[name] as new (code: string, message: string) => Error)("closed", "text");
    assert.is(made.name, name);
  }
});

test("so does a client that has become too large; below that its size is one line", () => {
  const max = builder.browserBytesMax;
  assert.is(builder.sizeLine(new Uint8Array(1000)), "dist/client.browser.js: 1000 bytes, 29 gzipped");
  builder.sizeLine(randomBytes(max - 100));
  assert.throws(() => builder.sizeLine(randomBytes(max + 1)), new RegExp(`gzipped, allowed are ${max}$`));
});

test("the Dockerfile copies what there is, and .dockerignore lets it in", () => {
  const copied = [...readFileSync("Dockerfile", "utf8").matchAll(/^COPY (?!--from)(.+) \S+$/gm)].flatMap(([, names]) =>
    names!.split(" "),
  );
  const letIn = [...readFileSync(".dockerignore", "utf8").matchAll(/^!(.+)$/gm)].map(([, name]) => name!);
  assert.equal(copied.toSorted(), letIn.toSorted());
  assert.equal(
    copied.filter((name) => !existsSync(name)),
    [],
  );
});

test.after(() => rmSync(folder, { recursive: true, force: true }));
test.run();
