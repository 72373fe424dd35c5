// The package as npm would publish it, and what installs it in an empty folder.

import { type SpawnSyncReturns, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";

export interface Packed {
  readonly file: string;
  readonly name: string;
  readonly version: string;
  readonly integrity: string;
  readonly shasum: string;
  /** The package.json inside. */
  readonly manifest: Record<string, unknown>;
  /** The paths inside. */
  readonly paths: readonly string[];
}

interface PackReport {
  readonly filename: string;
  readonly name: string;
  readonly version: string;
  readonly integrity: string;
  readonly shasum: string;
  readonly files: readonly { readonly path: string }[];
}

const stepMs = 120_000;

/** Runs a program to its end; throws with all it said when it fails. */
export function runProgram(
  command: string,
  args: readonly string[],
  options: { cwd?: string; env?: NodeJS.ProcessEnv } = {},
): SpawnSyncReturns<string> {
  const result = spawnSync(command, args, { ...options, encoding: "utf8", timeout: stepMs });
  if (result.error) throw result.error;
  if (result.status !== 0) {
    const said = `${result.stdout}${result.stderr}`.trim();
    throw new Error(`${command} ${args.join(" ")} ended with ${result.status ?? result.signal}:\n${said}`);
  }
  return result;
}

/** Builds this checkout and packs it into the folder. The build is run first by itself, because it would print into the report. */
export function packCheckout(to: string): Packed {
  runProgram("npm", ["run", "build", "--silent"]);
  const { stdout } = runProgram("npm", ["pack", "--ignore-scripts", "--json", "--pack-destination", to]);
  const [{ filename, name, version, integrity, shasum, files }] = JSON.parse(stdout) as [PackReport];
  const manifest = JSON.parse(readFileSync("package.json", "utf8")) as Record<string, unknown>;
  const paths = files.map(({ path }) => path);
  return { file: join(to, filename), name, version, integrity, shasum, manifest, paths };
}

export function npmConfig(key: string): string | undefined {
  const value = runProgram("npm", ["config", "get", key]).stdout.trim();
  return ["", "null", "undefined"].includes(value) ? undefined : value;
}

/** What a shell of somebody else has that passes through to the outside: nothing of ours, and no settings of a node. */
const passed = [
  "PATH",
  "LANG",
  "TERM",
  "NODE_EXTRA_CA_CERTS",
  "SSL_CERT_FILE",
  "HTTP_PROXY",
  "HTTPS_PROXY",
  "http_proxy",
  "https_proxy",
];

/** The environment of a reader with an empty home, who installs from the registry given. Downloads come from our cache if it has them. */
export function readerEnv(home: string, registry: string): NodeJS.ProcessEnv {
  const env: NodeJS.ProcessEnv = {
    HOME: home,
    NO_PROXY: "127.0.0.1",
    no_proxy: "127.0.0.1",
    npm_config_registry: registry,
    npm_config_cache: npmConfig("cache"),
    npm_config_prefer_offline: "true",
    // Answers the one question that npx asks.
    npm_config_yes: "true",
    npm_config_audit: "false",
    npm_config_fund: "false",
    npm_config_update_notifier: "false",
    npm_config_loglevel: "error",
  };
  for (const name of passed) if (process.env[name] !== undefined) env[name] = process.env[name];
  return env;
}
