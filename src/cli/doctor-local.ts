// What can be said about this machine before a node starts here: version, settings, folder, disk, limits, ports, clock.

import { closeSync, fdatasyncSync, openSync, unlinkSync, writeSync } from "node:fs";
import { access, constants, readdir, readFile, stat, statfs } from "node:fs/promises";
import { createServer } from "node:net";
import { availableParallelism, hostname, tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { type Config, isLoopback, readConfig } from "../config.ts";
import { type Clock, sleep } from "../runtime/clock.ts";
import { absent } from "./export-part.ts";
import { isRunning } from "./file-lock.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";
import { bytesText, count } from "./table.ts";
import { timeText } from "./times.ts";

const nodeMin = [20, 19] as const;
/** The newest format that this version reads; the store says the same, and a test compares. */
export const formatVersionMax = 1;
/** A node prepares segments of 64 MiB ahead. */
const freeBytesMin = 256 * 1024 * 1024;
const freeBytesLow = 2 * 1024 * 1024 * 1024;
const syncsMeasured = 20;
const syncBytes = 4096;
/** No disk that keeps its word is this fast. */
const syncMsHonest = 0.02;
const syncMsSlow = 20;
const filesLow = 4096;
const driftMs = 200;
const driftMsMax = 50;
const yearMin = 2025;
const yearMax = 2100;
const probeMsMax = 1000;

export function checkNodeVersion(version: string): Finding {
  const [major, minor] = version.replace(/^v/, "").split(".").map(Number);
  const [wantedMajor, wantedMinor] = nodeMin;
  const fits = major > wantedMajor || (major === wantedMajor && minor >= wantedMinor);
  if (fits) return ok("node", `${version}`);
  return fail("node", `${version} is too old: install Node ${wantedMajor}.${wantedMinor} or newer`);
}

export async function checkOwnVersion(): Promise<Finding> {
  const text = await readFile(new URL("../package.json", import.meta.url), "utf8").catch(absent);
  const { version } = JSON.parse(text ?? "{}") as { version?: string };
  return version === undefined
    ? warn("narthex", "its package.json is missing: install the package again")
    : ok("narthex", `version ${version}`);
}

// ---------------------------------------------------------------------------------------------------------------- settings

/** The settings that a start would get from this environment. */
export function readSettings(env: Readonly<Record<string, string | undefined>>): Config | Finding {
  const reading = readConfig(env, [], availableParallelism());
  if ("fault" in reading) return fail("settings", reading.fault);
  if ("show" in reading) return fail("settings", "the environment asks for help");
  return reading;
}

export function checkToken({ token, host }: Config): Finding {
  if (token !== undefined) return ok("token", `set; HOST is ${host}`);
  if (isLoopback(host)) {
    return ok("token", "none, so only programs on this machine can connect; set WS_TOKEN before HOST is anything else");
  }
  return fail("token", `none, and HOST is ${host}: set WS_TOKEN, or HOST=127.0.0.1`);
}

export function checkRates({ connRate, topicRate }: Config): Finding {
  const text = (rate: Config["connRate"]) => (rate === "off" ? "off" : `${rate.burst}/${rate.perSec}`);
  const said = `CONN_RATE=${text(connRate)} TOPIC_RATE=${text(topicRate)}`;
  const careful = text(connRate) === "200/200" || text(topicRate) === "1000/1000";
  if (!careful) return ok("rates", said);
  return ok("rates", `${said}, the careful defaults; for load set both to off, or to numbers as burst/perSec`);
}

export function checkOpenFiles(limits: string | undefined): Finding {
  const soft = /^Max open files\s+(\d+|unlimited)/m.exec(limits ?? "")?.[1];
  if (soft === undefined) return ok("open files", "the limit cannot be read on this system");
  if (soft === "unlimited" || Number(soft) >= filesLow) return ok("open files", `up to ${soft}`);
  return warn("open files", `only ${soft}, one for each connection: raise it with ulimit -n 65536`);
}

export async function readLimits(): Promise<string | undefined> {
  return readFile("/proc/self/limits", "utf8").catch(absent);
}

// ------------------------------------------------------------------------------------------------------------------ folder

export async function checkFolder(path: string): Promise<readonly Finding[]> {
  const folder = resolve(path);
  const facts = await stat(folder).catch(absent);
  if (facts === undefined) {
    const parent = await nearestFolder(folder);
    const finding = (await isWritable(parent))
      ? ok("data", `${folder} does not exist yet; the first start makes it`)
      : fail("data", `${folder} does not exist and ${parent} cannot be written: make it, or set NARTHEX_DATA`);
    return [finding, await checkSpace(parent)];
  }
  if (!facts.isDirectory()) return [fail("data", `${folder} is not a folder: set NARTHEX_DATA to another path`)];
  if (!(await isWritable(folder))) {
    return [fail("data", `${folder} cannot be written by this user: change its owner, or set NARTHEX_DATA`)];
  }
  return [ok("data", folder), await checkFormat(folder), await checkLock(folder), await checkSpace(folder)];
}

async function nearestFolder(path: string): Promise<string> {
  for (let folder = dirname(path); ; folder = dirname(folder)) {
    if ((await stat(folder).catch(absent))?.isDirectory() || folder === dirname(folder)) return folder;
  }
}

async function isWritable(folder: string): Promise<boolean> {
  return access(folder, constants.W_OK | constants.X_OK).then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === "EACCES" || error.code === "EROFS" || error.code === "EPERM") return false;
      throw error;
    },
  );
}

async function checkSpace(folder: string): Promise<Finding> {
  const { bavail, bsize } = await statfs(folder);
  const free = bavail * bsize;
  const said = `${bytesText(free)} free at ${folder}`;
  if (free < freeBytesMin) return fail("space", `only ${said}: make room, a node refuses writes when the disk is full`);
  return free < freeBytesLow
    ? warn("space", `only ${said}: make room, or set a retention on topics`)
    : ok("space", said);
}

async function checkFormat(folder: string): Promise<Finding> {
  const text = await readFile(join(folder, "format.json"), "utf8").catch(absent);
  if (text === undefined) {
    const shards = (await readdir(folder)).filter((name) => name.startsWith("shard-"));
    if (shards.length === 0) return ok("format", "an empty folder");
    return fail("format", `${folder} has shards but no format.json: restore it from the backup that they came from`);
  }
  const version = formatVersionOf(text);
  if (version === undefined) return fail("format", `${join(folder, "format.json")} cannot be read: restore it`);
  if (version > formatVersionMax) {
    return fail("format", `version ${version}, this program reads up to ${formatVersionMax}: use a newer narthex`);
  }
  return ok("format", `version ${version}`);
}

function formatVersionOf(text: string): number | undefined {
  try {
    const { version } = JSON.parse(text) as { version?: unknown };
    return typeof version === "number" ? version : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

interface Owner {
  readonly pid: number;
  readonly host?: string;
  readonly released?: boolean;
}

/** As store/log/lock.ts writes it. Only who it is, not whether it may be taken over: that is for a start to decide. */
async function checkLock(folder: string): Promise<Finding> {
  const numbers = (await readdir(folder)).flatMap((name) => (/^lock\.\d+$/.test(name) ? [Number(name.slice(5))] : []));
  if (numbers.length === 0) return ok("lock", "nobody has the folder");
  const path = join(folder, `lock.${Math.max(...numbers)}`);
  const owner = ownerOf((await readFile(path, "utf8").catch(absent)) ?? "");
  if (owner === undefined || owner.released) return ok("lock", "nobody has the folder");
  if (owner.host !== hostname()) {
    return warn(
      "lock",
      `process ${owner.pid} on ${owner.host} has the folder, or had it: a start finds out, or remove ${path}`,
    );
  }
  return isRunning(owner.pid)
    ? ok("lock", `process ${owner.pid} has the folder; a second node needs another NARTHEX_DATA`)
    : ok("lock", `process ${owner.pid} had the folder and is gone; the next start takes it`);
}

function ownerOf(text: string): Owner | undefined {
  try {
    const owner = JSON.parse(text) as Partial<Owner> | null;
    return typeof owner?.pid === "number" ? (owner as Owner) : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

// ------------------------------------------------------------------------------------------------------------------- fsync

/** On the file system of the folder: in it, or as near to it as can be written. */
export async function checkSync(path: string, clock: Clock): Promise<Finding> {
  let folder = resolve(path);
  if ((await stat(folder).catch(absent)) === undefined) folder = await nearestFolder(folder);
  if (!(await isWritable(folder))) folder = tmpdir();
  return syncFinding(measureSyncs(folder, clock), folder);
}

function measureSyncs(folder: string, clock: Clock): number[] {
  const file = join(folder, `doctor.${clock.nonce(6)}.tmp`);
  const bytes = Buffer.alloc(syncBytes, 1);
  const fd = openSync(file, "wx");
  try {
    return Array.from({ length: syncsMeasured }, (_, n) => {
      const startedAt = clock.mono();
      writeSync(fd, bytes, 0, bytes.length, n * syncBytes);
      fdatasyncSync(fd);
      return clock.mono() - startedAt;
    });
  } finally {
    closeSync(fd);
    unlinkSync(file);
  }
}

/** Of the times of some writes of 4 KiB with an fdatasync each. */
export function syncFinding(times: readonly number[], folder: string): Finding {
  const sorted = [...times].sort((a, b) => a - b);
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * share) - 1)];
  const [p50, p99] = [at(0.5), at(0.99)];
  const said = `write and fdatasync of 4 KiB in ${folder}: p50 ${p50.toFixed(2)} ms, p99 ${p99.toFixed(2)} ms`;
  if (p50 < syncMsHonest) {
    return warn(
      "fsync",
      `${said}; no disk is that fast: a file system in memory, or a disk that does not keep its word`,
    );
  }
  if (p50 > syncMsSlow) return warn("fsync", `${said}; every publish waits for it: use a faster disk`);
  return ok("fsync", said);
}

// ------------------------------------------------------------------------------------------------------------------- ports

export async function checkPorts(config: Config): Promise<readonly Finding[]> {
  const { host, wsPort, httpPort, opsPort, replayPort } = config;
  const ports = { WS_PORT: wsPort, HTTP_PORT: httpPort, OPS_PORT: opsPort, REPLAY_PORT: replayPort };
  const findings: Finding[] = [];
  for (const [setting, port] of Object.entries(ports)) {
    if (port === "off" || port === 0) continue;
    findings.push(await checkPort(setting, host, port));
  }
  return findings;
}

async function checkPort(setting: string, host: string, port: number): Promise<Finding> {
  const check = `port ${port}`;
  const code = await tryListen(host, port);
  if (code === undefined) return ok(check, `free (${setting})`);
  if (code === "EADDRINUSE") {
    if (await answersAsNode(host, port))
      return ok(check, `a narthex listens there; a second one needs another ${setting}`);
    return fail(check, `taken by another program: end it, or set ${setting} to a free port`);
  }
  if (code === "EACCES") return fail(check, `not allowed for this user: set ${setting} to 1024 or above`);
  return fail(check, `${host}:${port} cannot be listened on (${code}): check HOST and ${setting}`);
}

function tryListen(host: string, port: number): Promise<string | undefined> {
  return new Promise((done) => {
    const server = createServer();
    server.once("error", (error: NodeJS.ErrnoException) => done(error.code ?? error.message));
    server.listen({ host, port, exclusive: true }, () => server.close(() => done(undefined)));
  });
}

async function answersAsNode(host: string, port: number): Promise<boolean> {
  const address = host === "0.0.0.0" || host === "::" ? "127.0.0.1" : host.includes(":") ? `[${host}]` : host;
  try {
    const answer = await fetch(`http://${address}:${port}/health/live`, { signal: AbortSignal.timeout(probeMsMax) });
    const { live } = (await answer.json()) as { live?: unknown };
    return live === true;
  } catch {
    // Whatever it is that does not answer like a node.
    return false;
  }
}

// ------------------------------------------------------------------------------------------------------------------- clock

export async function checkClock(clock: Clock): Promise<Finding> {
  const before = { mono: clock.mono(), wall: clock.wall() };
  await sleep(clock, driftMs);
  return clockFinding(before, { mono: clock.mono(), wall: clock.wall() });
}

interface Reading {
  readonly mono: number;
  readonly wall: number;
}

export function clockFinding(before: Reading, after: Reading): Finding {
  const year = new Date(after.wall).getUTCFullYear();
  if (year < yearMin || year > yearMax) {
    return fail("clock", `it says ${timeText(after.wall)}: set the time, ids and retention go by it`);
  }
  const drift = after.wall - before.wall - (after.mono - before.mono);
  if (Math.abs(drift) <= driftMsMax) return ok("clock", `${timeText(after.wall)}, and it runs evenly`);
  return warn(
    "clock",
    `it moved ${count(Math.round(drift))} ms against the monotonic clock within ${driftMs} ms: is something setting it?`,
  );
}
