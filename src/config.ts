// Everything that can be set, from the environment or flags of the same names, and every limit with its unit and bound last. One
// table holds each setting's name, default, allowed values and meaning, so that what is read, what is refused and what --help
// says cannot differ.

import { frameBounds } from "./protocol/bounds.ts";
import { shardsMax } from "./protocol/lease.ts";
import type { Rate } from "./protocol/rate.ts";
import { partitionsMax } from "./protocol/stream.ts";

export interface Config {
  readonly host: string;
  readonly wsPort: number;
  readonly httpPort: number | "off";
  readonly opsPort: number | "off";
  readonly replayPort: number | "off";
  /** Browser origins allowed besides our own. */
  readonly origins: readonly string[];
  readonly token: string | undefined;
  readonly workers: number;
  readonly store: "log" | "memory" | "mongo";
  readonly dataPath: string;
  readonly mongoUrl: string | undefined;
  readonly partitions: number;
  readonly autoCreate: boolean;
  readonly connRate: Rate | "off";
  readonly topicRate: Rate | "off";
  readonly ackTimeoutMs: number;
  readonly maxInflight: number;
  readonly maxAttempts: number;
  readonly maxPayload: number;
  readonly maxFrame: number;
  readonly logLevel: "debug" | "info" | "warn" | "error" | "silent";
  readonly limits: Limits;
}

/** Not settable by the environment; tests make them small. */
export interface Limits {
  readonly connectionsMax: number;
  /** TCP connections on all ports together, WebSockets included: each is a file descriptor, and the log needs some as well. */
  readonly socketsMax: number;
  /** Requests on one HTTP connection that wait behind the one being answered. */
  readonly pipelinedMax: number;
  readonly subscriptionsPerConnectionMax: number;
  /** Requests of one connection that wait for their answer. */
  readonly pendingPerConnectionMax: number;
  readonly authMs: number;
  /** What a connection may send before it has shown who it is. */
  readonly unauthedBytesMax: number;
  readonly unsentBytesMax: number;
  readonly stalledMs: number;
  readonly pingMs: number;
  readonly topicsMax: number;
  readonly groupsPerTopicMax: number;
  readonly unsettledMax: number;
  readonly dedupeMs: number;
  readonly dedupeEntriesMax: number;
  readonly pruneEveryMs: number;
  /** Messages under way per worker, then `overloaded`; and their bytes. */
  readonly workerInflightMax: number;
  readonly workerInflightBytesMax: number;
  readonly askMs: number;
  readonly drainMs: number;
  readonly httpBodyBytesMax: number;
  /** Of the answers to replays that are being gathered or have not been taken. */
  readonly replayHeldBytesMax: number;
  readonly batchEventsMax: number;
  readonly segmentBytes: number;
  /** How long a commit to MongoDB is tried. */
  readonly mongoCommitMs: number;
  readonly workerHeapMb: number | undefined;
  /** A worker that gives no sign of life for so long is ended. */
  readonly workerStuckMs: number;
}

const mebibyte = 1_048_576;

const defaultLimits: Limits = {
  connectionsMax: 10_000,
  socketsMax: 11_000,
  pipelinedMax: 16,
  subscriptionsPerConnectionMax: 1000,
  pendingPerConnectionMax: 10_000,
  authMs: 10_000,
  unauthedBytesMax: 65_536,
  unsentBytesMax: mebibyte,
  stalledMs: 60_000,
  pingMs: 20_000,
  topicsMax: 10_000,
  groupsPerTopicMax: 1000,
  unsettledMax: 10_000,
  dedupeMs: 120_000,
  // Room for an import of a million events, and the names that its batches have besides.
  dedupeEntriesMax: 1_048_576,
  pruneEveryMs: 10_000,
  workerInflightMax: 20_000,
  workerInflightBytesMax: 64 * mebibyte,
  askMs: 10_000,
  drainMs: 10_000,
  httpBodyBytesMax: 1_000_000,
  replayHeldBytesMax: 128 * mebibyte,
  batchEventsMax: 10_000,
  segmentBytes: 64 * mebibyte,
  mongoCommitMs: 10_000,
  workerHeapMb: undefined,
  workerStuckMs: 30_000,
};

// --------------------------------------------------------------------------------------------------------------- settings

type SettingName = Exclude<keyof Config, "limits">;
type Settings = { readonly [Name in SettingName]: Setting<Config[Name]> };

interface Setting<Value> {
  /** In the environment; the flag is the same in kebab case. */
  readonly name: string;
  readonly meaning: string;
  readonly allowed: string;
  readonly fallback: Value;
  /** The default as --help shows it, where it is not the value itself. */
  readonly shown?: string;
  /** The value may not be repeated in a message. */
  readonly secret?: boolean;
  /** Undefined: not one of the allowed. */
  readonly parse: (text: string) => Value | undefined;
}

const workersMax = shardsMax;
const payloadBytesMin = 16;
const frameBytesMin = 1024;
const frameBytesMax = 64 * mebibyte;
const rateMax = 1_000_000_000;
/** An event is a document there, and a document has at most 16 MiB. */
export const mongoPayloadBytesMax = 12 * mebibyte;

const settings: Settings = {
  wsPort: { ...port("WS_PORT", 8090), meaning: "WebSocket and HTTP" },
  httpPort: { ...portOrOff("HTTP_PORT", 8081), meaning: "HTTP, for clients that publish there" },
  opsPort: { ...portOrOff("OPS_PORT", 8082), meaning: "HTTP, for metrics and health" },
  replayPort: { ...portOrOff("REPLAY_PORT", 8083), meaning: "HTTP, for replay and export" },
  host: {
    name: "HOST",
    meaning: "address to listen on; outside loopback WS_TOKEN must be set",
    allowed: "an address or a host name",
    fallback: "127.0.0.1",
    parse: (text) => (/^[A-Za-z0-9.:_%-]{1,255}$/.test(text) ? text : undefined),
  },
  origins: {
    name: "ORIGINS",
    meaning: "browser origins allowed besides our own",
    allowed: "origins such as https://app.example.com, with commas between them",
    fallback: [],
    shown: "none",
    parse: parseOrigins,
  },
  token: {
    name: "WS_TOKEN",
    meaning: "what clients must show; safer as a variable: ps shows flags",
    allowed: `1 to ${frameBounds.tokenCharsMax} visible ASCII characters without spaces`,
    fallback: undefined,
    shown: "none",
    secret: true,
    parse: (text) => (text.length <= frameBounds.tokenCharsMax && /^[\x21-\x7e]+$/.test(text) ? text : undefined),
  },
  workers: { ...whole("WORKERS", 1, workersMax, 1), meaning: "worker threads", shown: "cores - 1, at least 1" },
  store: { ...oneOf("STORE", ["log", "memory", "mongo"], "log"), meaning: "where events are kept" },
  dataPath: {
    name: "NARTHEX_DATA",
    meaning: "folder of the log store",
    allowed: "a path",
    fallback: "./narthex-data",
    parse: (text) => (text === "" || text.includes("\0") ? undefined : text),
  },
  mongoUrl: {
    name: "MONGO_URL",
    meaning: "the replica set and database of STORE=mongo",
    allowed: "a URL that starts with mongodb:// or mongodb+srv://",
    fallback: undefined,
    shown: "none",
    secret: true, // it may have a password in it
    parse: (text) => (/^mongodb(\+srv)?:\/\/[^\s]+$/.test(text) ? text : undefined),
  },
  partitions: { ...whole("PARTITIONS", 1, partitionsMax, 1), meaning: "of a topic that is made on first use" },
  autoCreate: {
    name: "AUTO_CREATE",
    meaning: "whether topics are made on first use",
    allowed: "true or false",
    fallback: true,
    parse: (text) => (text === "true" ? true : text === "false" ? false : undefined),
  },
  connRate: { ...rate("CONN_RATE", { burst: 200, perSec: 200 }), meaning: "events per connection, each way" },
  topicRate: { ...rate("TOPIC_RATE", { burst: 1000, perSec: 1000 }), meaning: "events published per topic" },
  ackTimeoutMs: {
    ...whole("ACK_TIMEOUT_MS", frameBounds.ackTimeoutMsMin, frameBounds.ackTimeoutMsMax, 30_000),
    meaning: "how long a lease lasts where the subscriber does not say",
  },
  maxInflight: {
    ...whole("MAX_INFLIGHT", 1, frameBounds.maxInflightMax, 100),
    meaning: "leases of a subscription where the subscriber does not say",
  },
  maxAttempts: {
    ...whole("MAX_ATTEMPTS", 1, frameBounds.maxAttemptsMax, 5),
    meaning: "deliveries before an event is a dead letter, where nobody says",
  },
  maxPayload: {
    ...whole("MAX_PAYLOAD", payloadBytesMin, frameBytesMax, mebibyte),
    meaning: "bytes of one event's payload; below MAX_FRAME",
  },
  maxFrame: { ...whole("MAX_FRAME", frameBytesMin, frameBytesMax, 8 * mebibyte), meaning: "bytes of one frame" },
  logLevel: {
    ...oneOf("LOG_LEVEL", ["debug", "info", "warn", "error", "silent"], "info"),
    meaning: "what is written to stderr",
  },
};

const settingNames = Object.keys(settings) as SettingName[];

function whole(name: string, min: number, max: number, fallback: number) {
  return { name, fallback, allowed: `whole numbers from ${min} to ${max}`, parse: wholeParser(min, max) };
}

function port(name: string, fallback: number) {
  return { name, fallback, allowed: "0 to 65535 (0: any free one)", parse: wholeParser(0, 65_535) };
}

function portOrOff(name: string, fallback: number) {
  const parse = wholeParser(0, 65_535);
  return {
    name,
    fallback,
    allowed: "0 to 65535 (0: any free one) or off",
    parse: (text: string) => (text === "off" ? ("off" as const) : parse(text)),
  };
}

function oneOf<Value extends string>(name: string, values: readonly Value[], fallback: Value) {
  const parse = (text: string) => values.find((value) => value === text);
  return { name, fallback, allowed: values.join(", "), parse };
}

function rate(name: string, fallback: Rate) {
  const parse = wholeParser(1, rateMax);
  return {
    name,
    fallback,
    shown: `${fallback.burst}/${fallback.perSec}`,
    allowed: `burst/perSec such as 200/200, each from 1 to ${rateMax}, or off`,
    parse: (text: string): Rate | "off" | undefined => {
      if (text === "off") return "off";
      const [burst, perSec, ...more] = text.split("/").map(parse);
      return burst === undefined || perSec === undefined || more.length > 0 ? undefined : { burst, perSec };
    },
  };
}

function wholeParser(min: number, max: number): (text: string) => number | undefined {
  return (text) => {
    if (!/^[0-9]{1,15}$/.test(text)) return undefined;
    const value = Number(text);
    return value >= min && value <= max ? value : undefined;
  };
}

/** As browsers write them: scheme, host and a port that is not the scheme's own; no path. */
function parseOrigins(text: string): readonly string[] | undefined {
  const origins = text.split(",").map((part) => part.trim());
  return origins.every((origin) => URL.canParse(origin) && new URL(origin).origin === origin) ? origins : undefined;
}

// ---------------------------------------------------------------------------------------------------------------- reading

/** What a start of the program is to do. A fault is one line that names the setting and what is allowed. */
export type Reading = Config | { readonly fault: string } | { readonly show: "help" | "version" };

/** From the environment and the arguments behind the program's name; a flag counts more than a variable. */
export function readConfig(
  env: Readonly<Record<string, string | undefined>>,
  argv: readonly string[],
  cores: number,
): Reading {
  const flags = readFlags(argv);
  if (!(flags instanceof Map)) return flags;
  const chosen: Choices = { workers: Math.min(Math.max(cores - 1, 1), workersMax) };
  for (const name of settingNames) {
    const fault = choose(name, chosen, env, flags);
    if (fault !== undefined) return { fault };
  }
  const config = complete(chosen);
  const fault = configFault(config);
  return fault === undefined ? freeze(config) : { fault };
}

/** What is given in place of defaults. */
export type Overrides = Partial<Omit<Config, "limits">> & { readonly limits?: Partial<Limits> };

/** For createNode and tests: defaults with some values replaced. A wrong one is the caller's mistake and throws. */
export function defaultConfig(overrides: Overrides = {}): Config {
  const config = complete(overrides);
  const fault = configFault(config);
  if (fault !== undefined) throw new Error(fault);
  return freeze(config);
}

type Choices = { -readonly [Name in SettingName]?: Config[Name] };

function choose<Name extends SettingName>(
  name: Name,
  chosen: { [Key in Name]?: Config[Key] },
  env: Readonly<Record<string, string | undefined>>,
  flags: ReadonlyMap<string, string>,
): string | undefined {
  const setting: Setting<Config[Name]> = settings[name];
  const flag = flagOf(setting.name);
  const fromFlag = flags.get(flag);
  // A variable that is set to nothing is as good as unset, but a token that came out empty must not open the node.
  const fromEnv = env[setting.name] === "" && name !== "token" ? undefined : env[setting.name];
  const text = fromFlag ?? fromEnv;
  if (text === undefined) return undefined;
  const value = setting.parse(text);
  if (value === undefined) {
    const said = text === "" ? "empty" : setting.secret ? "not valid" : JSON.stringify(text);
    return `${fromFlag === undefined ? setting.name : flag} is ${said}: allowed are ${setting.allowed}`;
  }
  chosen[name] = value;
  return undefined;
}

function readFlags(
  argv: readonly string[],
): Map<string, string> | { readonly fault: string } | { readonly show: "help" | "version" } {
  if (argv.includes("--help")) return { show: "help" };
  if (argv.includes("--version")) return { show: "version" };
  const known = settingNames.map((name) => flagOf(settings[name].name));
  const flags = new Map<string, string>();
  for (let i = 0; i < argv.length; i++) {
    const equals = argv[i].indexOf("=");
    const flag = equals < 0 ? argv[i] : argv[i].slice(0, equals);
    if (!known.includes(flag))
      return { fault: `unknown flag ${JSON.stringify(flag)}: allowed are ${known.join(" ")} --help --version` };
    const value = equals < 0 ? argv[++i] : argv[i].slice(equals + 1);
    if (value === undefined || (equals < 0 && value.startsWith("--"))) {
      const setting = settings[settingNames[known.indexOf(flag)]];
      return { fault: `${flag} needs a value: allowed are ${setting.allowed}` };
    }
    flags.set(flag, value);
  }
  return flags;
}

function flagOf(name: string): string {
  return `--${name.toLowerCase().replaceAll("_", "-")}`;
}

function complete(overrides: Overrides): Config {
  const defaults = Object.fromEntries(settingNames.map((name) => [name, settings[name].fallback])) as unknown as Omit<
    Config,
    "limits"
  >;
  return { ...defaults, ...given(overrides), limits: { ...defaultLimits, ...given(overrides.limits ?? {}) } };
}

/** Without what is undefined: that is not given, whatever a spread makes of it. */
function given<Values extends object>(values: Values): Values {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Values;
}

function freeze(config: Config): Config {
  const { origins, connRate, topicRate } = config;
  const copyRate = (value: Rate | "off") => (value === "off" ? value : Object.freeze({ ...value }));
  return Object.freeze({
    ...config,
    origins: Object.freeze([...origins]),
    connRate: copyRate(connRate),
    topicRate: copyRate(topicRate),
    limits: Object.freeze({ ...config.limits }),
  });
}

// ------------------------------------------------------------------------------------------------- what must hold together

function configFault(config: Config): string | undefined {
  return (
    valueFault(config) ??
    safetyFault(config) ??
    mongoFault(config) ??
    portFault(config) ??
    (config.maxPayload < config.maxFrame
      ? undefined
      : `MAX_PAYLOAD is ${config.maxPayload} and MAX_FRAME ${config.maxFrame}: allowed are payloads below the frame`)
  );
}

function safetyFault(config: Config): string | undefined {
  if (config.token === undefined && !isLoopback(config.host))
    return `HOST is ${config.host} and WS_TOKEN is not set: allowed without WS_TOKEN are 127.0.0.1, ::1, localhost`;
  return undefined;
}

function mongoFault({ store, mongoUrl, maxPayload }: Config): string | undefined {
  if (store !== "mongo") return undefined;
  if (mongoUrl === undefined)
    return `STORE is mongo and MONGO_URL is not set: allowed are ${settings.mongoUrl.allowed}`;
  if (maxPayload > mongoPayloadBytesMax)
    return `MAX_PAYLOAD is ${maxPayload}: allowed with STORE=mongo are up to ${mongoPayloadBytesMax}`;
  return undefined;
}

export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || /^127(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}$/.test(host);
}

function portFault(config: Config): string | undefined {
  const names = new Map<number, string>();
  for (const name of ["wsPort", "httpPort", "opsPort", "replayPort"] as const) {
    const value = config[name];
    if (value === "off" || value === 0) continue;
    const other = names.get(value);
    if (other !== undefined)
      return `${settings[name].name} is ${value}, as is ${other}: allowed are different ports (each serves everything) or off`;
    names.set(value, settings[name].name);
  }
  return undefined;
}

/** Overrides come from code, and perhaps from code without types: a NaN or a "9000" would be found much later. */
function valueFault(config: Config): string | undefined {
  for (const name of settingNames) {
    const setting: Setting<Config[SettingName]> = settings[name];
    const value = config[name];
    if (value === undefined ? setting.fallback === undefined : survives(value, setting)) continue;
    const said = setting.secret ? "not valid" : JSON.stringify(typeof value === "number" ? String(value) : value);
    return `${setting.name} is ${said}: allowed are ${setting.allowed}`;
  }
  const limitNames = Object.keys(config.limits) as (keyof Limits)[];
  for (const name of limitNames) {
    const value = config.limits[name];
    if (value !== undefined && !(Number.isInteger(value) && value > 0))
      return `limits.${name} is ${value}: allowed are whole numbers above 0`;
  }
  // A PUBLISHED frame counts its runs in 16 bits.
  if (config.limits.batchEventsMax > 65_535)
    return `limits.batchEventsMax is ${config.limits.batchEventsMax}: allowed are 1 to 65535`;
  return undefined;
}

/** Whether a value, written as it would be in the environment, is read as that value. */
function survives(value: NonNullable<Config[SettingName]> | null, setting: Setting<Config[SettingName]>): boolean {
  if (value === null) return false;
  if (typeof value !== "object") return setting.parse(String(value)) === value;
  if (Array.isArray(value)) return value.length === 0 || setting.parse(value.join(",")) !== undefined;
  const { burst, perSec } = value as Rate;
  return setting.parse(`${burst}/${perSec}`) !== undefined;
}

// ------------------------------------------------------------------------------------------------------------------- help

export function helpText(): string {
  const rows = settingNames.map((name) => {
    const { name: variable, meaning, allowed, fallback, shown } = settings[name] as Setting<Config[SettingName]>;
    return `  ${flagOf(variable).padEnd(18)} ${variable.padEnd(16)} ${meaning}\n${" ".repeat(38)}${allowed}; default ${
      shown ?? fallback
    }`;
  });
  return `narthex: a durable event bus in one process

Usage: narthex [start] [--flag value]...

Each flag is also a variable of the environment; the flag counts more.

${rows.join("\n")}
  --help${" ".repeat(30)}this text
  --version${" ".repeat(27)}the version
`;
}
