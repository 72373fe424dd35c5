// node build.mjs              dist/: what `npm start` runs
// node build.mjs --types      dist/ and its declarations: what the package ships
// node build.mjs --test       dist-test/ and dist-bench/; test/run.mjs calls buildTests itself
// node build.mjs --bench      dist-bench/
// node build.mjs --run-bench [name...]   dist-bench/, then each bench named (or all of them), one after the other
//
// Every output folder is flat and has its own host.js, because the code finds the worker with
// `new URL("./host.js", import.meta.url)`: test/store/log-recovery.test.ts becomes dist-test/store-log-recovery.test.js.

import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = fileURLToPath(new URL(".", import.meta.url));
const hashbang = "#!/usr/bin/env node";

/** The programs of the node itself, by output name. One that is not written yet is left out. */
function sourceEntries() {
  const entries = { main: "src/main.ts", narthex: "src/narthex.ts", host: "src/runtime/host.ts" };
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

function benchEntries() {
  if (!existsSync(join(root, "bench"))) return {};
  const files = readdirSync(join(root, "bench")).filter((file) => file.endsWith(".ts"));
  return Object.fromEntries(files.map((file) => [basename(file, ".ts"), `bench/${file}`]));
}

async function bundle(entries, outdir, { prune = true } = {}) {
  const { main, ...others } = entries;
  const options = {
    absWorkingDir: root,
    bundle: true,
    packages: "external",
    platform: "node",
    format: "esm",
    target: "node20",
    sourcemap: true,
    outdir,
    write: false,
  };
  // main.js is what `npx narthex` executes. esbuild keeps a hashbang that the source has, and must not get a second one.
  const banner = main && !readFileSync(join(root, main), "utf8").startsWith("#!") ? { js: hashbang } : {};
  const results = await Promise.all([
    build({ ...options, entryPoints: others }),
    main ? build({ ...options, entryPoints: { main }, banner }) : { outputFiles: [] },
  ]);
  const outputs = results.flatMap((result) => result.outputFiles);
  mkdirSync(join(root, outdir), { recursive: true });
  for (const output of outputs) replaceFile(output.path, output.contents);
  if (!prune) return;
  const kept = new Set(outputs.map((output) => basename(output.path)));
  for (const file of readdirSync(join(root, outdir))) {
    if (/\.js(\.map)?$/.test(file) && !kept.has(file)) rmSync(join(root, outdir, file));
  }
}

/** A whole file or the old one, never half of it: another run in this checkout may be starting a worker from it now. */
function replaceFile(path, contents) {
  if (existsSync(path) && readFileSync(path).equals(contents)) return;
  const fresh = `${path}.${process.pid}.tmp`;
  writeFileSync(fresh, contents, { mode: basename(path) === "main.js" ? 0o755 : 0o644 });
  renameSync(fresh, path);
}

export async function buildNode() {
  await bundle(sourceEntries(), "dist");
}

export async function buildBenches() {
  await bundle({ ...benchEntries(), ...sourceEntries() }, "dist-bench");
}

/** Builds all tests, or only those that `wants(name, path)`: then what is there of the others stays. */
export async function buildTests(wants) {
  const all = Object.entries(testEntries());
  const picked = wants ? all.filter(([name, path]) => name.endsWith(".entry") || wants(name, path)) : all;
  await bundle({ ...Object.fromEntries(picked), ...sourceEntries() }, "dist-test", { prune: !wants });
  await buildBenches();
}

function buildTypes() {
  if (!existsSync(join(root, "src/narthex.ts"))) return;
  rmSync(join(root, "dist/types"), { recursive: true, force: true });
  run([join(root, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.types.json"]);
}

function run(args) {
  const { status, error } = spawnSync(process.execPath, args, { cwd: root, stdio: "inherit" });
  if (error) throw error;
  if (status !== 0) process.exit(status ?? 1);
}

async function main([mode, ...names]) {
  switch (mode) {
    case undefined:
      return buildNode();
    case "--types":
      await buildNode();
      return buildTypes();
    case "--test":
      return buildTests();
    case "--bench":
      return buildBenches();
    case "--run-bench": {
      await buildBenches();
      for (const name of names.length > 0 ? names : Object.keys(benchEntries())) {
        run(["--enable-source-maps", join("dist-bench", `${name}.js`)]);
      }
      return;
    }
    default:
      console.error(`build.mjs: unknown option ${mode}; allowed: --types --test --bench --run-bench [name...]`);
      process.exit(1);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    await main(process.argv.slice(2));
  } catch (error) {
    // esbuild has printed what is wrong in the sources.
    if (!error.errors) console.error(error);
    process.exit(1);
  }
}
