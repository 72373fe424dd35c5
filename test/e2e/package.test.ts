// The package as npm would publish it, installed into an empty folder and used from there: as a program, as a library, from ES
// modules, from CommonJS, through a bundler for browsers, and by the compiler.

import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { isBuiltin } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { build } from "esbuild";
import { publint } from "publint";
import { formatMessage } from "publint/utils";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { within } from "../support/deadline.ts";
import { type Packed, packCheckout, runProgram } from "../support/package.ts";

const work = mkdtempSync(join(tmpdir(), "narthex-package-"));
const consumer = join(work, "consumer");
const installed = join(consumer, "node_modules", "narthex");
const tools = resolve("node_modules");
const children = new Set<ChildProcess>();
let packed: Packed;

test.before(() => {
  mkdirSync(consumer);
  packed = packCheckout(work);
  writeFileSync(join(consumer, "package.json"), '{ "name": "consumer", "private": true }\n');
  const quiet = ["--prefer-offline", "--no-audit", "--no-fund", "--loglevel", "error"];
  runProgram("npm", ["install", ...quiet, packed.file], { cwd: consumer });
});

function write(name: string, text: string): string {
  const path = join(consumer, name);
  writeFileSync(path, text);
  return path;
}

interface Running {
  /** Resolves with the match once it was printed. */
  seen(pattern: RegExp): Promise<RegExpExecArray>;
  end(signal: NodeJS.Signals): Promise<number | string>;
}

function start(command: string, args: readonly string[], env: Record<string, string> = {}): Running {
  const child = spawn(command, args, { cwd: consumer, env: { PATH: process.env.PATH, ...env } });
  children.add(child);
  let out = "";
  const ended = new Promise<number | string>((done) =>
    child.once("close", (code, signal) => done(signal ?? code ?? -1)),
  );
  const seen = (pattern: RegExp) =>
    new Promise<RegExpExecArray>((found, fail) => {
      const look = () => {
        const match = pattern.exec(out);
        if (match !== null) found(match);
      };
      for (const stream of [child.stdout, child.stderr]) {
        stream.on("data", (chunk: Buffer) => {
          out += chunk;
          look();
        });
      }
      void ended.then((code) => fail(new Error(`ended with ${code} before ${pattern}:\n${out}`)));
    });
  return {
    seen: (pattern) => within(20_000, `${pattern}`, seen(pattern)),
    end(signal) {
      child.kill(signal);
      return within(20_000, `the end after ${signal}`, ended);
    },
  };
}

test("it holds what is needed and nothing else", () => {
  const folders = new Set(packed.paths.map((path) => path.replace(/\/.*/s, "/")));
  assert.equal([...folders].sort(), [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "LICENSE",
    "PROTOCOL.md",
    "README.md",
    "SECURITY.md",
    "TESTING.md",
    "dist/",
    "package.json",
  ]);
  const programs = ["main", "cli", "host", "narthex", "client", "client.browser", "cjs/client"].map(
    (name) => `dist/${name}.js`,
  );
  assert.equal(packed.paths.filter((path) => path.endsWith(".js")).sort(), programs.sort());
  const telling = packed.paths.filter((path) => readFileSync(join(installed, path), "utf8").includes(process.cwd()));
  assert.equal(telling, [], "no file says where it was built");
  const declarations = packed.paths.filter((path) => path.endsWith(".d.ts"));
  const unusual = declarations.filter((path) => /"\.[^"]*\.ts"/.test(readFileSync(join(installed, path), "utf8")));
  assert.equal(unusual, [], "no declaration imports a source");
});

test("`npx narthex` runs: its version, and a node on a folder until SIGTERM", async () => {
  const { stdout } = runProgram("npx", ["narthex", "--version"], { cwd: consumer });
  assert.is(stdout, `${packed.version}\n`);
  const ports = { WS_PORT: "0", HTTP_PORT: "off", OPS_PORT: "off", REPLAY_PORT: "off" };
  const node = start(join(consumer, "node_modules", ".bin", "narthex"), [], ports);
  await node.seen(/^narthex ready$/m);
  assert.ok(readdirSync(consumer).includes("narthex-data"));
  assert.is(await node.end("SIGTERM"), 0);
});

test('`import "narthex"` starts a node; `import` and `require` of "narthex/client" publish to it and receive', async () => {
  const server = write(
    "server.mjs",
    `import { createNode } from "narthex";
     const off = { httpPort: "off", opsPort: "off", replayPort: "off" };
     const node = await createNode({ store: "memory", wsPort: 0, ...off });
     console.log("ws://127.0.0.1:" + node.listening[0].port);
     process.once("SIGTERM", () => node.close());`,
  );
  const use = `
    const client = await connect(process.argv[2]);
    const sent = await client.publish("orders", { by: process.argv[3] }, { key: "k" });
    const got = new Promise((resolve) => client.subscribe("orders", process.argv[3], (event) => {
      if (event.id === sent.id) resolve(event);
    }, { from: "earliest" }));
    const { payload, key, id } = await got;
    await client.close();
    console.log(JSON.stringify({ payload, key, same: id === sent.id }));`;
  const modules = {
    esm: write("use.mjs", `import { connect } from "narthex/client";${use}`),
    cjs: write("use.cjs", `const { connect } = require("narthex/client");\n(async () => {${use}\n})();`),
  };
  const node = start(process.execPath, [server]);
  const [url] = await node.seen(/ws:\/\/127\.0\.0\.1:\d+/);
  for (const [name, file] of Object.entries(modules)) {
    const { stdout, stderr } = runProgram(process.execPath, [file, url, name], { cwd: consumer });
    assert.is(stderr, "");
    assert.equal(JSON.parse(stdout), { payload: { by: name }, key: "k", same: true });
  }
  assert.is(await node.end("SIGTERM"), 0);
});

test("a bundler for browsers takes the browser build, and nothing of Node comes along", async () => {
  const contents = 'import { connect } from "narthex/client";\nconnect("ws://127.0.0.1:8090").then(console.log);';
  for (const platform of ["browser", "neutral"] as const) {
    const { metafile, outputFiles } = await build({
      stdin: { contents, resolveDir: consumer },
      absWorkingDir: consumer,
      bundle: true,
      minify: true,
      platform,
      format: "esm",
      metafile: true,
      write: false,
    });
    assert.equal(
      Object.keys(metafile.inputs).sort(),
      ["<stdin>", "node_modules/narthex/dist/client.browser.js"],
      platform,
    );
    const imports = Object.values(metafile.outputs).flatMap((output) => output.imports);
    assert.equal(imports, []);
    assert.not.match(outputFiles[0]!.text, /\bnode:|\brequire\(/);
  }
  const { metafile } = await build({
    stdin: { contents, resolveDir: consumer },
    absWorkingDir: consumer,
    bundle: true,
    platform: "node",
    format: "esm",
    metafile: true,
    write: false,
  });
  assert.ok(Object.keys(metafile.inputs).includes("node_modules/narthex/dist/client.js"));
  assert.ok(Object.values(metafile.outputs).some((output) => output.imports.some(({ path }) => isBuiltin(path))));
});

const clientUse = `import { connect, EventClient, NarthexError } from "narthex/client";
export async function use(): Promise<string> {
  const client = await connect<{ orders: { n: number } }>("ws://127.0.0.1:8090");
  const { id } = await client.publish("orders", { n: 1 });
  // @ts-expect-error the topic's payload is checked
  await client.publish("orders", { n: "one" });
  const stop = await client.subscribe("orders", "billing", async (event) => void event.payload.n.toFixed());
  await stop();
  return id;
}
export const isOurs = (error: unknown) => error instanceof NarthexError && error.code === "unavailable";
export type Client = EventClient;
`;
const nodeUse = `import { createNode } from "narthex";
export const start = () => createNode({ store: "memory" });
// @ts-expect-error no such store
export const wrong = () => createNode({ store: "paper" });
`;

/** With `skipLibCheck` off, so that the declarations themselves are checked with what the consumer has. */
function compile(files: readonly string[], options: Record<string, unknown>): void {
  const config = write(
    "tsconfig.json",
    JSON.stringify({ compilerOptions: { strict: true, noEmit: true, skipLibCheck: false, ...options }, files }),
  );
  runProgram(process.execPath, [join(tools, "typescript", "bin", "tsc"), "-p", config], { cwd: consumer });
}

test("the types of the client compile in both resolutions, with and without those of Node or of the browser", () => {
  const files = [write("client.mts", clientUse), write("client-common.cts", clientUse)];
  const resolutions = [
    { module: "nodenext", moduleResolution: "nodenext" },
    { module: "esnext", moduleResolution: "bundler" },
  ];
  const surroundings = [
    { target: "es2022", lib: ["es2022"], types: [] },
    { target: "es2022", lib: ["es2022", "dom"], types: [] },
    { target: "es2023", lib: ["es2023"], types: ["node"], typeRoots: [join(tools, "@types")] },
  ];
  for (const resolution of resolutions) {
    // A bundler takes an import for what it is, so a file that is CommonJS by its name has no place there.
    const those = resolution.module === "nodenext" ? files : files.slice(0, 1);
    for (const around of surroundings) compile(those, { ...resolution, ...around });
  }
});

test("the types of the node compile in both resolutions with those of Node", () => {
  const files = [write("node.mts", nodeUse)];
  const node = { target: "es2023", lib: ["es2023"], types: ["node"], typeRoots: [join(tools, "@types")] };
  compile(files, { module: "nodenext", moduleResolution: "nodenext", ...node });
  compile(files, { module: "esnext", moduleResolution: "bundler", ...node });
});

test("publint finds nothing", async () => {
  const { messages } = await publint({ pkgDir: installed, strict: true });
  assert.equal(
    messages.map((message) => formatMessage(message, packed.manifest)),
    [],
  );
});

test("Are the types wrong? Nowhere", () => {
  const attw = (...args: string[]) =>
    runProgram(process.execPath, [join(tools, "@arethetypeswrong", "cli", "dist", "index.js"), packed.file, ...args]);
  attw("--entrypoints", "./client");
  // The node is an ES module and nothing else: Node from 20.19 on can require one, and older ones are not supported.
  attw("--entrypoints", ".", "--ignore-rules", "cjs-resolves-to-esm");
});

test.after(() => {
  for (const child of children) child.kill("SIGKILL");
  rmSync(work, { recursive: true, force: true });
});
test.run();
