// node build.mjs              dist/: the node and the client; what `npm start` runs
// node build.mjs --types      dist/ and its declarations: what the package ships
// node build.mjs --test       dist-test/ and dist-bench/; test/run.mjs calls buildTests itself
// node build.mjs --bench      dist-bench/
// node build.mjs --run-bench [name...]   dist-bench/, then each bench named (or all of them), one after the other
// node build.mjs --run-entry path [argument...]   test/<path>.entry.ts alone, then runs it: the long runs (sim, crash, soak …)
//
// The client is built three times from one source: dist/client.js (ES module, Node), dist/cjs/client.js (CommonJS, Node) and
// dist/client.browser.js (ES module, everything with a WebSocket of its own). The last one has bounds that end the build:
// no Node built-in, no package, and a size.
//
// Every output folder is flat and has its own host.js, because the code finds the worker with
// `new URL("./host.js", import.meta.url)`: test/store/log-recovery.test.ts becomes dist-test/store-log-recovery.test.js.

import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = fileURLToPath(new URL(".", import.meta.url));
const hashbang = "#!/usr/bin/env node";
const clientEntry = "src/client/client.ts";
export const browserBytesMax = 17_408;
/** Names that exist in Node only. Each is renamed where it means the global, so that one in the output is one too many. */
const nodeGlobals = ["Buffer", "process", "global", "require", "module", "__dirname", "__filename"];
const nodeGlobalMark = "NODE_ONLY_";

/** The programs of the node itself, by output name. One that is not written yet is left out. */
function sourceEntries() {
  const entries = {
    main: "src/main.ts",
    cli: "src/cli/cli.ts",
    narthex: "src/narthex.ts",
    host: "src/runtime/host.ts",
  };
  return Object.fromEntries(Object.entries(entries).filter(([, path]) => existsSync(join(root, path))));
}

/** Tests, and the programs that tests start (`*.entry.ts`), by flat output name. */
export function testEntries() {
  const entries = {};
  for (const file of readdirSync(join(root, "test"), { recursive: true }).sort()) {
    const path = file.replaceAll("\\", "/");
    if (!/\.(test|entry)\.ts$/.test(path)) continue;
    const name = path.replaceAll("/", "-").slice(0, -".ts".length);
    if (entries[name]) throw new Error(`test/${path} and ${entries[name]} would both be written to ${name}.js`);
    entries[name] = `test/${path}`;
  }
  return entries;
}

/** The benches by their names. */
function benches() {
  if (!existsSync(join(root, "bench"))) return {};
  const files = readdirSync(join(root, "bench")).filter((file) => file.endsWith(".ts"));
  return Object.fromEntries(files.map((file) => [basename(file, ".ts"), `bench/${file}`]));
}

/** And the programs that they start. */
function benchEntries() {
  const entries = benches();
  for (const file of readdirSync(join(root, "bench"), { recursive: true })) {
    const path = file.replaceAll("\\", "/");
    if (path.endsWith(".entry.ts")) entries[path.replaceAll("/", "-").slice(0, -".ts".length)] = `bench/${path}`;
  }
  return entries;
}

const nodeOptions = {
  absWorkingDir: root,
  bundle: true,
  packages: "external",
  platform: "node",
  format: "esm",
  target: "node20",
  sourcemap: true,
  // Node keeps the whole of a map in memory.
  sourcesContent: false,
  write: false,
};

async function bundle(entries, outdir) {
  const { main, ...others } = entries;
  const options = { ...nodeOptions, outdir };
  // main.js is what `npx narthex` executes. esbuild keeps a hashbang that the source has, and must not get a second one.
  const banner = main && !readFileSync(join(root, main), "utf8").startsWith("#!") ? { js: hashbang } : {};
  const results = await Promise.all([
    build({ ...options, entryPoints: others }),
    main ? build({ ...options, entryPoints: { main }, banner }) : { outputFiles: [] },
  ]);
  return results.flatMap((result) => result.outputFiles);
}

/** Puts the outputs in their places. With `prune`, what an earlier build left beside them goes. */
function place(outputs, outdir, { prune }) {
  for (const output of outputs) {
    mkdirSync(dirname(output.path), { recursive: true });
    replaceFile(output.path, output.contents);
  }
  if (!prune) return;
  const kept = new Set(outputs.map((output) => output.path));
  for (const file of readdirSync(join(root, outdir))) {
    const path = join(root, outdir, file);
    if (/\.js(\.map)?$/.test(file) && !kept.has(path)) rmSync(path);
  }
}

async function bundleCommonClient() {
  const { outputFiles } = await build({
    ...nodeOptions,
    format: "cjs",
    entryPoints: { client: clientEntry },
    outdir: "dist/cjs",
  });
  const scope = Buffer.from(`${JSON.stringify({ type: "commonjs" })}\n`);
  return [...outputFiles, { path: join(root, "dist/cjs/package.json"), contents: scope }];
}

/** Everything is in the one file: a relative import is followed, anything else is a Node built-in or a package and ends the build. */
const browserModules = {
  name: "browser-modules",
  setup({ onResolve, resolve }) {
    onResolve({ filter: /^[^./]/ }, ({ path, kind }) =>
      kind === "entry-point" ? undefined : { errors: [{ text: `${path} does not exist in a browser` }] },
    );
    onResolve({ filter: /\/dial-node\.ts$/ }, ({ path, ...options }) =>
      resolve(path.replace("dial-node", "dial-browser"), options),
    );
  },
};

/** `test/build.test.ts` gives it another entry. */
export async function bundleBrowserClient(entry = clientEntry, logLevel = "warning") {
  const { outputFiles } = await build({
    ...nodeOptions,
    packages: "bundle",
    platform: "browser",
    target: "es2022",
    minify: true,
    define: Object.fromEntries(nodeGlobals.map((name) => [name, nodeGlobalMark + name])),
    entryPoints: { "client.browser": entry },
    outdir: "dist",
    logLevel,
    plugins: [browserModules],
  });
  const { text } = outputFiles.find(({ path }) => path.endsWith(".js"));
  const strays = nodeGlobals.filter((name) => text.includes(nodeGlobalMark + name));
  if (strays.length > 0) throw new BuildError(`dist/client.browser.js uses ${strays.join(", ")}, which only Node has`);
  return outputFiles;
}

/** The last step of a build, so that one that fails by it has left everything else. */
function checkBrowserSize() {
  const path = join(root, "dist/client.browser.js");
  if (existsSync(path)) console.log(sizeLine(readFileSync(path)));
}

export function sizeLine(bytes) {
  const zipped = gzipSync(bytes, { level: 9 }).length;
  const size = `dist/client.browser.js: ${bytes.length} bytes, ${zipped} gzipped`;
  if (zipped > browserBytesMax) throw new BuildError(`${size}, allowed are ${browserBytesMax}`);
  return size;
}

/** What is wrong is in the words; where it was found says nothing more. */
class BuildError extends Error {}

/** A whole file or the old one, never half of it: another run in this checkout may be starting a worker from it now. */
function replaceFile(path, contents) {
  if (existsSync(path) && readFileSync(path).equals(contents)) return;
  const fresh = `${path}.${process.pid}.tmp`;
  writeFileSync(fresh, contents, { mode: basename(path) === "main.js" ? 0o755 : 0o644 });
  renameSync(fresh, path);
}

export async function buildNode() {
  if (!existsSync(join(root, clientEntry)))
    return place(await bundle(sourceEntries(), "dist"), "dist", { prune: true });
  const outputs = await Promise.all([
    bundle({ ...sourceEntries(), client: clientEntry }, "dist"),
    bundleCommonClient(),
    bundleBrowserClient(),
  ]);
  place(outputs.flat(), "dist", { prune: true });
}

export async function buildBenches() {
  place(await bundle({ ...benchEntries(), ...sourceEntries() }, "dist-bench"), "dist-bench", { prune: true });
}

/** Builds all tests, or only those that `wants(name, path)`: then what is there of the others stays. */
export async function buildTests(wants) {
  const all = Object.entries(testEntries());
  const picked = wants ? all.filter(([name, path]) => name.endsWith(".entry") || wants(name, path)) : all;
  const outputs = await bundle({ ...Object.fromEntries(picked), ...sourceEntries() }, "dist-test");
  place(outputs, "dist-test", { prune: !wants });
  await buildBenches();
}

/** One program of the tests with what it starts: host.js, and main.js as the node in a process of its own. */
async function buildEntry(path) {
  const found = Object.entries(testEntries()).find(([, source]) => source === `test/${path}.entry.ts`);
  if (!found) throw new BuildError(`there is no test/${path}.entry.ts`);
  const [name, source] = found;
  place(await bundle({ [name]: source, ...sourceEntries() }, "dist-test"), "dist-test", { prune: false });
  return join("dist-test", `${name}.js`);
}

/**
 * The declarations of the two entries and what they name, with the imports as a consumer's compiler wants them. Those of the client
 * are there twice, because a declaration file is CommonJS or not by the package.json above it.
 */
function buildTypes() {
  const fresh = join(root, `dist/types.${process.pid}.tmp`);
  run([join(root, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.types.json", "--outDir", fresh]);
  for (const [entries, to] of [
    [["narthex.d.ts", "client/client.d.ts"], "dist/types"],
    [["client/client.d.ts"], "dist/cjs/types"],
  ]) {
    const reached = declarationsFrom(fresh, entries);
    if (reached.size === 0) continue;
    const draft = join(root, `${to}.${process.pid}.new`);
    for (const [file, text] of reached) {
      mkdirSync(dirname(join(draft, file)), { recursive: true });
      writeFileSync(join(draft, file), text);
    }
    rmSync(join(root, to), { recursive: true, force: true });
    renameSync(draft, join(root, to));
  }
  rmSync(fresh, { recursive: true });
}

function declarationsFrom(folder, entries) {
  const reached = new Map();
  const waiting = entries.filter((entry) => existsSync(join(folder, entry)));
  for (let file = waiting.pop(); file !== undefined; file = waiting.pop()) {
    if (reached.has(file)) continue;
    const text = readFileSync(join(folder, file), "utf8").replace(
      /(\bfrom |\bimport ?\(?)"(\.[^"]*)\.ts"/g,
      (_, before, specifier) => {
        waiting.push(join(dirname(file), `${specifier}.d.ts`));
        return `${before}"${specifier}.js"`;
      },
    );
    // The compiler has these names from its settings or from @types/node; a consumer may have neither.
    const disposable = /\bSymbol\.(asyncD|d)ispose\b|\b(Async)?Disposable\b/.test(text);
    reached.set(file, disposable ? `/// <reference lib="esnext.disposable" />\n${text}` : text);
  }
  return reached;
}

function run(args) {
  const { status, error } = spawnSync(process.execPath, args, { cwd: root, stdio: "inherit" });
  if (error) throw error;
  if (status !== 0) process.exit(status ?? 1);
}

async function main([mode, ...names]) {
  switch (mode) {
    case undefined:
      await buildNode();
      return checkBrowserSize();
    case "--types":
      await buildNode();
      buildTypes();
      return checkBrowserSize();
    case "--test":
      return buildTests();
    case "--bench":
      return buildBenches();
    case "--run-bench": {
      await buildBenches();
      for (const name of names.length > 0 ? names : Object.keys(benches())) {
        run(["--enable-source-maps", join("dist-bench", `${name}.js`)]);
      }
      return;
    }
    case "--run-entry": {
      const [path, ...rest] = names;
      return run(["--enable-source-maps", await buildEntry(path), ...rest]);
    }
    default:
      console.error(
        `build.mjs: unknown option ${mode}; allowed: --types --test --bench --run-bench [name...] --run-entry path [argument...]`,
      );
      process.exit(1);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    await main(process.argv.slice(2));
  } catch (error) {
    // esbuild has printed what is wrong in the sources.
    if (error instanceof BuildError) console.error(`build.mjs: ${error.message}`);
    else if (!error.errors) console.error(error);
    process.exit(1);
  }
}
