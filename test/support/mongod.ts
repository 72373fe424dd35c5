// A real mongod as a replica set of one or of three members, or as what a node must refuse: standalone, or with users. Each member is
// a process of this test's own group on a free loopback port, with a temporary folder and a small cache, ended by its pid.

import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Document, MongoClient } from "mongodb";
import { test } from "uvu";
import { pause, within } from "./deadline.ts";
import { findMongod, withoutMongod } from "./mongod-binary.ts";

const startMs = 30_000;
const endMs = 10_000;
const pollMs = 25;
const setName = "rs0";

export interface Member {
  readonly host: string;
  readonly alive: boolean;
  readonly pid: number;
  /** Sends a signal; one that ends the process resolves when it has ended. */
  kill(signal: "SIGKILL" | "SIGTERM" | "SIGSTOP" | "SIGCONT"): Promise<void>;
  /** On its port and folder of before. */
  restart(): Promise<void>;
}

export interface Mongod {
  /** For a node: all members and the set, with a database of its own at each call. */
  url(): string;
  readonly members: readonly Member[];
  primary(): Promise<Member>;
  /** To one member alone, or to the set. */
  connect(member?: Member): Promise<MongoClient>;
  stop(): Promise<void>;
}

export interface MongodOptions {
  readonly members?: 1 | 3;
  readonly standalone?: boolean;
  /** With access control, and this as the one user that may do everything. */
  readonly root?: { readonly user: string; readonly password: string };
}

/** Adds `tests` where there is a mongod. Otherwise they are one test, which is skipped or fails. The caller runs them. */
export async function withMongod(name: string, tests: () => void | Promise<void>): Promise<void> {
  const found = await findMongod();
  if ("path" in found) {
    await tests();
  } else if (withoutMongod() === "fail") {
    test(name, () => {
      throw new Error(found.missing);
    });
  } else {
    console.log(`skipped: ${name}: ${found.missing}`);
    test.skip(name);
  }
}

export async function startMongod(options: MongodOptions = {}): Promise<Mongod> {
  const found = await findMongod();
  if ("missing" in found) throw new Error(found.missing);
  const folder = mkdtempSync(join(tmpdir(), "narthex-mongod-"));
  const members: MemberProcess[] = [];
  const remove = () => {
    for (const member of members) member.end();
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  };
  // Also where a test ends its process without a word.
  process.once("exit", remove);
  try {
    const security = securityArgs(folder, options);
    const ports = await freePorts(options.members ?? 1);
    for (const port of ports) members.push(new MemberProcess(found.path, join(folder, String(port)), port, security));
    await Promise.all(members.map((member) => member.restart()));
    if (!options.standalone) await initiate(members);
    if (options.root !== undefined) await makeRoot(members[0], options.root);
  } catch (error) {
    remove();
    throw error;
  }
  return new Running(members, options, async () => {
    process.off("exit", remove);
    await Promise.all(members.map((member) => member.kill("SIGKILL")));
    remove();
  });
}

class Running implements Mongod {
  readonly members: readonly MemberProcess[];
  private readonly options: MongodOptions;
  private readonly ended: () => Promise<void>;
  private readonly clients = new Set<MongoClient>();
  private databases = 0;

  constructor(members: readonly MemberProcess[], options: MongodOptions, ended: () => Promise<void>) {
    this.members = members;
    this.options = options;
    this.ended = ended;
  }

  url(): string {
    this.databases++;
    return this.urlOf(`test-${this.databases}`);
  }

  async primary(): Promise<MemberProcess> {
    return within(startMs, "there is a primary", primaryOf(this.members, this.options.root));
  }

  async connect(member?: Member): Promise<MongoClient> {
    const { root } = this.options;
    const url = member === undefined ? this.urlOf("admin") : directUrl(member.host, root);
    const client = await new MongoClient(url, { serverSelectionTimeoutMS: startMs }).connect();
    this.clients.add(client);
    return client;
  }

  async stop(): Promise<void> {
    await Promise.all([...this.clients].map((client) => client.close()));
    await this.ended();
  }

  private urlOf(database: string): string {
    const { standalone, root } = this.options;
    const who = root === undefined ? "" : `${root.user}:${root.password}@`;
    const query = [standalone ? "" : `replicaSet=${setName}`, root === undefined ? "" : "authSource=admin"];
    const hosts = this.members.map(({ host }) => host).join(",");
    return `mongodb://${who}${hosts}/${database}?${query.filter((part) => part !== "").join("&")}`;
  }
}

class MemberProcess implements Member {
  readonly host: string;
  private readonly program: string;
  private readonly folder: string;
  private readonly args: readonly string[];
  private child: ChildProcess | undefined;
  private ended: Promise<void> = Promise.resolve();

  constructor(program: string, folder: string, port: number, security: readonly string[]) {
    this.program = program;
    this.folder = folder;
    this.host = `127.0.0.1:${port}`;
    this.args = [
      "--port",
      String(port),
      "--bind_ip",
      "127.0.0.1",
      "--dbpath",
      folder,
      "--wiredTigerCacheSizeGB",
      "0.25",
      "--logpath",
      join(folder, "mongod.log"),
      "--logappend",
      "--nounixsocket",
      // Lets a test make a command fail once.
      "--setParameter",
      "enableTestCommands=1",
      ...security,
    ];
  }

  get alive(): boolean {
    return this.child !== undefined;
  }

  get pid(): number {
    return this.child?.pid ?? 0;
  }

  async kill(signal: "SIGKILL" | "SIGTERM" | "SIGSTOP" | "SIGCONT"): Promise<void> {
    this.child?.kill(signal);
    if (signal === "SIGKILL" || signal === "SIGTERM") await within(endMs, "a mongod ends", this.ended);
  }

  /** Sends SIGKILL and waits for nothing. */
  end(): void {
    this.child?.kill("SIGKILL");
  }

  async restart(): Promise<void> {
    mkdirSync(this.folder, { recursive: true });
    const child = spawn(this.program, this.args, { stdio: "ignore" });
    this.child = child;
    this.ended = new Promise((resolve) => {
      const over = () => {
        if (this.child === child) this.child = undefined;
        resolve();
      };
      child.on("exit", over);
      child.on("error", over);
    });
    await within(startMs, "a mongod answers", this.answers());
  }

  private async answers(): Promise<void> {
    while (this.alive) {
      const client = new MongoClient(directUrl(this.host), { serverSelectionTimeoutMS: pollMs });
      try {
        await client.db("admin").command({ hello: 1 });
        return;
      } catch {
        await pause(pollMs);
      } finally {
        await client.close();
      }
    }
    throw new Error(`mongod ended at its start: ${logTail(this.folder)}`);
  }
}

function logTail(folder: string): string {
  try {
    return readFileSync(join(folder, "mongod.log"), "utf8").split("\n").slice(-5).join("\n");
  } catch {
    return "it wrote no log";
  }
}

/** Members of a set with users show each other a key file. */
function securityArgs(folder: string, { standalone, root }: MongodOptions): readonly string[] {
  const set = standalone ? [] : ["--replSet", setName];
  if (root === undefined) return set;
  const keyFile = join(folder, "key");
  writeFileSync(keyFile, randomBytes(60).toString("base64"), { mode: 0o600 });
  return [...set, "--auth", "--keyFile", keyFile];
}

function directUrl(host: string, root?: { readonly user: string; readonly password: string }): string {
  const who = root === undefined ? "" : `${root.user}:${root.password}@`;
  return `mongodb://${who}${host}/?directConnection=true`;
}

/** A set that finds a new primary within two seconds, so that tests of it are short. */
async function initiate(members: readonly MemberProcess[]): Promise<void> {
  const config: Document = {
    _id: setName,
    members: members.map(({ host }, n) => ({ _id: n, host, priority: n === 0 ? 2 : 1 })),
    settings: { electionTimeoutMillis: 1500, heartbeatIntervalMillis: 500 },
  };
  const client = new MongoClient(directUrl(members[0].host));
  try {
    await client.db("admin").command({ replSetInitiate: config });
  } finally {
    await client.close();
  }
  await within(startMs, "the set has a primary", primaryOf(members));
  // One that still copies its first data could not be elected.
  await within(startMs, "all members can be elected", Promise.all(members.map(isReady)));
}

async function isReady({ host }: MemberProcess): Promise<void> {
  const client = new MongoClient(directUrl(host));
  try {
    for (;;) {
      const { isWritablePrimary, secondary } = await client.db("admin").command({ hello: 1 });
      if (isWritablePrimary || secondary) return;
      await pause(pollMs);
    }
  } finally {
    await client.close();
  }
}

async function primaryOf(
  members: readonly MemberProcess[],
  root?: { readonly user: string; readonly password: string },
): Promise<MemberProcess> {
  for (;;) {
    for (const member of members) {
      if (!member.alive) continue;
      const client = new MongoClient(directUrl(member.host, root), { serverSelectionTimeoutMS: 500 });
      try {
        const { isWritablePrimary } = await client.db("admin").command({ hello: 1 });
        if (isWritablePrimary) return member;
      } catch {
        // One that is just ending, or has no users yet: the next look tells.
      } finally {
        await client.close();
      }
    }
    await pause(pollMs);
  }
}

/** The first user is made from the same machine, where nobody has to show who he is until there is one. */
async function makeRoot(
  member: MemberProcess,
  root: { readonly user: string; readonly password: string },
): Promise<void> {
  const client = new MongoClient(directUrl(member.host));
  try {
    await client.db("admin").command({ createUser: root.user, pwd: root.password, roles: ["root"] });
  } finally {
    await client.close();
  }
}

async function freePorts(count: number): Promise<readonly number[]> {
  const servers = Array.from({ length: count }, () => createServer());
  const ports = await Promise.all(
    servers.map(
      (server) =>
        new Promise<number>((resolve, reject) => {
          server.once("error", reject);
          server.listen(0, "127.0.0.1", () => resolve((server.address() as AddressInfo).port));
        }),
    ),
  );
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}
