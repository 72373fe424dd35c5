import { test } from "uvu";
import * as assert from "uvu/assert";
import { type Config, defaultConfig, helpText, isLoopback, type Overrides, readConfig } from "../src/config.ts";

function read(env: Record<string, string | undefined>, argv: string[] = [], cores = 4): Config {
  const outcome = readConfig(env, argv, cores);
  if ("fault" in outcome) throw new Error(outcome.fault);
  if ("show" in outcome) throw new Error(outcome.show);
  return outcome;
}

function fault(env: Record<string, string | undefined>, argv: string[] = []): string {
  const outcome = readConfig(env, argv, 4);
  if (!("fault" in outcome)) throw new Error(`accepted ${JSON.stringify(env)} ${argv.join(" ")}`);
  assert.not.match(outcome.fault, "\n");
  return outcome.fault;
}

const variables =
  "WS_PORT HTTP_PORT OPS_PORT REPLAY_PORT HOST ORIGINS WS_TOKEN WORKERS STORE NARTHEX_DATA MONGO_URL PARTITIONS AUTO_CREATE CONN_RATE TOPIC_RATE ACK_TIMEOUT_MS MAX_INFLIGHT MAX_ATTEMPTS MAX_PAYLOAD MAX_FRAME LOG_LEVEL".split(
    " ",
  );

test("an empty environment gives the documented defaults", () => {
  assert.equal(read({}), {
    host: "127.0.0.1",
    wsPort: 8090,
    httpPort: 8081,
    opsPort: 8082,
    replayPort: 8083,
    origins: [],
    token: undefined,
    workers: 3,
    store: "log",
    dataPath: "./narthex-data",
    mongoUrl: undefined,
    partitions: 1,
    autoCreate: true,
    connRate: { burst: 200, perSec: 200 },
    topicRate: { burst: 1000, perSec: 1000 },
    ackTimeoutMs: 30_000,
    maxInflight: 100,
    maxAttempts: 5,
    maxPayload: 1_048_576,
    maxFrame: 8_388_608,
    logLevel: "info",
    limits: {
      connectionsMax: 10_000,
      socketsMax: 11_000,
      pipelinedMax: 16,
      subscriptionsPerConnectionMax: 1000,
      pendingPerConnectionMax: 10_000,
      authMs: 10_000,
      unauthedBytesMax: 65_536,
      unsentBytesMax: 1_048_576,
      stalledMs: 60_000,
      pingMs: 20_000,
      topicsMax: 10_000,
      groupsPerTopicMax: 1000,
      unsettledMax: 10_000,
      dedupeMs: 120_000,
      dedupeEntriesMax: 1_048_576,
      pruneEveryMs: 10_000,
      workerInflightMax: 20_000,
      workerInflightBytesMax: 67_108_864,
      askMs: 10_000,
      drainMs: 10_000,
      httpBodyBytesMax: 1_000_000,
      replayHeldBytesMax: 134_217_728,
      batchEventsMax: 10_000,
      segmentBytes: 67_108_864,
      mongoCommitMs: 10_000,
      workerHeapMb: undefined,
      workerStuckMs: 30_000,
    },
  });
});

test("workers are one fewer than cores, at least one, at most 64", () => {
  assert.equal(
    [0, 1, 2, 8, 200].map((cores) => read({}, [], cores).workers),
    [1, 1, 1, 7, 64],
  );
  assert.is(read({ WORKERS: "64" }, [], 2).workers, 64);
});

const values: [env: Record<string, string>, wanted: Overrides][] = [
  [
    { WS_PORT: "0", HTTP_PORT: "off", OPS_PORT: "off", REPLAY_PORT: "65535" },
    { wsPort: 0, httpPort: "off", opsPort: "off", replayPort: 65_535 },
  ],
  [
    { HOST: "0.0.0.0", WS_TOKEN: "devtoken" },
    { host: "0.0.0.0", token: "devtoken" },
  ],
  [{ HOST: "::1" }, { host: "::1" }],
  [{ HOST: "localhost" }, { host: "localhost" }],
  [
    { ORIGINS: "https://a.example, http://b.example:8080" },
    { origins: ["https://a.example", "http://b.example:8080"] },
  ],
  [
    { STORE: "memory", NARTHEX_DATA: "/var/lib/x" },
    { store: "memory", dataPath: "/var/lib/x" },
  ],
  [{ MONGO_URL: "mongodb://a,b/?replicaSet=r" }, { mongoUrl: "mongodb://a,b/?replicaSet=r" }],
  [
    { STORE: "mongo", MONGO_URL: "mongodb://a", MAX_PAYLOAD: "12582912", MAX_FRAME: "20000000" },
    { store: "mongo", mongoUrl: "mongodb://a", maxPayload: 12_582_912, maxFrame: 20_000_000 },
  ],
  [
    { PARTITIONS: "64", AUTO_CREATE: "false" },
    { partitions: 64, autoCreate: false },
  ],
  [
    { CONN_RATE: "off", TOPIC_RATE: "50/10" },
    { connRate: "off", topicRate: { burst: 50, perSec: 10 } },
  ],
  [
    { ACK_TIMEOUT_MS: "100", MAX_INFLIGHT: "10000", MAX_ATTEMPTS: "1" },
    { ackTimeoutMs: 100, maxInflight: 10_000, maxAttempts: 1 },
  ],
  [
    { MAX_PAYLOAD: "10000", MAX_FRAME: "100000" },
    { maxPayload: 10_000, maxFrame: 100_000 },
  ],
  [{ LOG_LEVEL: "silent" }, { logLevel: "silent" }],
  [{ WS_PORT: "", HOST: "", STORE: "" }, {}],
];

test("each variable is read, and the flag of the same name", () => {
  const seen = new Set<string>();
  for (const [env, wanted] of values) {
    for (const name of Object.keys(env)) seen.add(name);
    const config = read(env);
    for (const [name, value] of Object.entries(wanted)) assert.equal(config[name as keyof Config], value, name);
    if (Object.values(env).includes("")) continue;
    const flags = Object.entries(env).map(([name, value]) => [`--${name.toLowerCase().replaceAll("_", "-")}`, value]);
    assert.equal(read({}, flags.flat()), config);
    assert.equal(
      read(
        {},
        flags.map(([flag, value]) => `${flag}=${value}`),
      ),
      config,
    );
  }
  assert.equal([...seen, "WORKERS"].sort(), [...variables].sort());
});

test("a flag counts more than a variable, and the last flag most", () => {
  assert.is(read({ WS_PORT: "1000" }, ["--ws-port", "2000"]).wsPort, 2000);
  assert.is(read({ WS_PORT: "nonsense" }, ["--ws-port=2000"]).wsPort, 2000);
  assert.is(read({}, ["--ws-port=2000", "--ws-port=3000"]).wsPort, 3000);
});

const wrong: [name: string, values: string[], allowed: RegExp][] = [
  ["WS_PORT", ["http", "-1", "65536", "80.5", "0x50", " 80", "80 ", "1e3", "off", "NaN"], /0 to 65535/],
  ["HTTP_PORT", ["on", "65536"], /0 to 65535.* or off/],
  ["OPS_PORT", ["OFF"], /or off/],
  ["REPLAY_PORT", ["no"], /or off/],
  ["HOST", ["a b", "http://x", "a/b"], /address/],
  ["ORIGINS", ["*", "a.example", "https://a.example/", "https://a.example/x", "https://a,,https://b"], /https:\/\//],
  ["WS_TOKEN", ["a b", "é", "a\n", "t".repeat(8193)], /1 to 8192 visible/],
  ["WORKERS", ["0", "65", "two", "1.5", "-1"], /1 to 64/],
  ["STORE", ["redis", "Log"], /log, memory, mongo/],
  ["NARTHEX_DATA", ["a\0b"], /path/],
  ["MONGO_URL", ["localhost", "http://x"], /mongodb:\/\//],
  ["PARTITIONS", ["0", "65"], /1 to 64/],
  ["AUTO_CREATE", ["yes", "1", "TRUE"], /true or false/],
  [
    "CONN_RATE",
    ["fast", "200", "200/", "/200", "0/1", "1/0", "1/2/3", "-1/5", "1.5/2", "200 / 200"],
    /burst\/perSec.*off/,
  ],
  ["TOPIC_RATE", ["none"], /burst\/perSec.*off/],
  ["ACK_TIMEOUT_MS", ["99", "86400001", "30s"], /100 to 86400000/],
  ["MAX_INFLIGHT", ["0", "10001"], /1 to 10000/],
  ["MAX_ATTEMPTS", ["0", "1001"], /1 to 1000/],
  ["MAX_PAYLOAD", ["15", "1m", "99999999999"], /16 to 67108864/],
  ["MAX_FRAME", ["1023", "67108865"], /1024 to 67108864/],
  ["LOG_LEVEL", ["verbose", "INFO"], /debug, info, warn, error, silent/],
];

test("a wrong value is one line that names the variable or the flag and what is allowed", () => {
  assert.equal(wrong.map(([name]) => name).sort(), [...variables].sort());
  for (const [name, texts, allowed] of wrong) {
    const flag = `--${name.toLowerCase().replaceAll("_", "-")}`;
    for (const text of texts) {
      assert.ok(fault({ [name]: text }).startsWith(`${name} is `), `${name}=${text}`);
      assert.match(fault({ [name]: text }), allowed);
      assert.ok(fault({}, [`${flag}=${text}`]).startsWith(`${flag} is `), `${flag}=${text}`);
      assert.match(fault({}, [flag, text]), allowed);
    }
    assert.match(fault({}, [flag]), `${flag} needs a value`);
    assert.match(fault({}, [flag, "--help-me"]), `${flag} needs a value`);
    assert.match(fault({}, [`${flag}=`]), `${flag} is empty`);
  }
});

test("settings that do not go together are refused by name", () => {
  assert.match(fault({ HOST: "0.0.0.0" }), /HOST.*WS_TOKEN/);
  assert.match(fault({ HOST: "::" }), /HOST.*WS_TOKEN/);
  assert.match(fault({ HOST: "example.com" }), /HOST.*WS_TOKEN/);
  assert.match(fault({ WS_TOKEN: "" }), /^WS_TOKEN is empty/);
  assert.match(fault({ STORE: "mongo" }), /STORE is mongo and MONGO_URL is not set.*mongodb:\/\//);
  const mongo = { STORE: "mongo", MONGO_URL: "mongodb://a", MAX_FRAME: "20000000" };
  assert.match(fault({ ...mongo, MAX_PAYLOAD: "12582913" }), /MAX_PAYLOAD is 12582913.*STORE=mongo.*12582912/);
  assert.match(fault({ MAX_PAYLOAD: "2000", MAX_FRAME: "2000" }), /MAX_PAYLOAD.*MAX_FRAME/);
  assert.match(fault({ MAX_PAYLOAD: "9000000" }), /MAX_PAYLOAD.*MAX_FRAME/);
  assert.match(fault({ HTTP_PORT: "8090" }), /HTTP_PORT is 8090, as is WS_PORT/);
  assert.match(fault({ OPS_PORT: "8083" }), /REPLAY_PORT is 8083, as is OPS_PORT/);
});

test("a secret is not repeated in a fault", () => {
  assert.not.match(fault({ WS_TOKEN: "my s3cr3t" }), "s3cr3t");
  assert.not.match(fault({}, ["--ws-token", "my s3cr3t"]), "s3cr3t");
  assert.not.match(fault({ MONGO_URL: "user:s3cr3t@host" }), "s3cr3t");
});

test("an unknown flag or word is refused with the known flags", () => {
  for (const word of ["--wsport", "--WS-PORT", "-p", "serve", "--toString", "--__proto__", "--limits"]) {
    assert.match(fault({}, [word, "1"]), JSON.stringify(word));
    assert.match(fault({}, [`${word}=1`]), "--ws-port");
  }
});

test("help and version are asked for anywhere among the flags", () => {
  assert.equal(readConfig({}, ["--help"], 1), { show: "help" });
  assert.equal(readConfig({ WS_PORT: "x" }, ["--nonsense", "--help"], 1), { show: "help" });
  assert.equal(readConfig({}, ["--version"], 1), { show: "version" });
});

test("the help text has every variable, flag and default in lines that fit", () => {
  const help = helpText();
  for (const name of variables) {
    assert.match(help, new RegExp(`^  --${name.toLowerCase().replaceAll("_", "-")} +${name} `, "m"));
  }
  for (const shown of [
    "8090",
    "127.0.0.1",
    "./narthex-data",
    "200/200",
    "1000/1000",
    "30000",
    "8388608",
    "cores - 1",
  ]) {
    assert.match(help, shown);
  }
  for (const line of help.split("\n")) assert.ok(line.length <= 120, line);
});

test("defaultConfig replaces what is given and nothing else", () => {
  const config = defaultConfig({ store: "memory", wsPort: 0, limits: { stalledMs: 5 } });
  assert.equal(config, {
    ...defaultConfig(),
    store: "memory",
    wsPort: 0,
    limits: { ...defaultConfig().limits, stalledMs: 5 },
  });
  assert.equal(defaultConfig({ wsPort: undefined } as unknown as Overrides), defaultConfig());
  assert.is(defaultConfig({ limits: { workerHeapMb: 64 } }).limits.workerHeapMb, 64);
  assert.is(defaultConfig({ limits: { batchEventsMax: 65_535 } }).limits.batchEventsMax, 65_535);
});

test("defaultConfig throws on what cannot be, whatever the types let through", () => {
  const cases: [object, RegExp][] = [
    [{ maxPayload: 5000, maxFrame: 5000 }, /MAX_PAYLOAD/],
    [{ host: "0.0.0.0" }, /WS_TOKEN/],
    [{ token: "" }, /WS_TOKEN/],
    [{ store: "mongo" }, /MONGO_URL/],
    [{ store: "redis" }, /STORE/],
    [{ workers: 0 }, /WORKERS/],
    [{ workers: Number.NaN }, /WORKERS/],
    [{ wsPort: "9000" }, /WS_PORT/],
    [{ wsPort: null }, /WS_PORT/],
    [{ origins: null }, /ORIGINS/],
    [{ connRate: null }, /CONN_RATE/],
    [{ connRate: {} }, /CONN_RATE/],
    [{ autoCreate: "false" }, /AUTO_CREATE/],
    [{ connRate: { burst: 0, perSec: 1 } }, /CONN_RATE/],
    [{ topicRate: "fast" }, /TOPIC_RATE/],
    [{ origins: ["evil"] }, /ORIGINS/],
    [{ limits: { stalledMs: 0 } }, /limits\.stalledMs/],
    [{ limits: { authMs: Number.NaN } }, /limits\.authMs/],
    [{ limits: { askMs: 1.5 } }, /limits\.askMs/],
    [{ limits: { batchEventsMax: 65_536 } }, /limits\.batchEventsMax/],
  ];
  for (const [overrides, named] of cases) {
    assert.throws(() => defaultConfig(overrides as Overrides), named, JSON.stringify(overrides));
  }
});

test("a Config cannot be changed, nor what was given to make it", () => {
  const origins = ["https://a.example"];
  const rate = { burst: 1, perSec: 2 };
  const config = defaultConfig({ origins, connRate: rate });
  for (const part of [config, config.limits, config.origins, config.connRate as object])
    assert.ok(Object.isFrozen(part));
  origins.push("https://b.example");
  rate.burst = 9;
  assert.equal([config.origins, config.connRate], [["https://a.example"], { burst: 1, perSec: 2 }]);
});

test("loopback is 127.x.x.x, ::1 and localhost", () => {
  for (const host of ["127.0.0.1", "127.255.0.9", "::1", "localhost"]) assert.ok(isLoopback(host), host);
  for (const host of [
    "0.0.0.0",
    "::",
    "10.0.0.1",
    "127.0.0.1.example.com",
    "127.0.0.256",
    "127.1",
    "localhost.example.com",
    "",
  ])
    assert.not(isLoopback(host), host);
});

test.run();
