// Text frames of PROTOCOL.md: good ones, ones with a single known fault, and ones that were hit at random. A frame is a list of
// members as raw JSON, because what is wanted here (1e999, two members of one name) is not what JSON.stringify writes.

import { codes } from "../../src/protocol/failure.ts";
import type { Dice } from "../support/dice.ts";
import { controlGroup, ownTopic, sharedTopic } from "./control.ts";
import { canary, maxPayload, token } from "./target.ts";

export interface Shot {
  readonly data: string | Uint8Array;
  /** What was done to it, for the report. */
  readonly kind: string;
  /** JSON of the corr that the answer must have; undefined: none. */
  readonly corr: string | undefined;
  /** What may be answered: codes, or OK. */
  readonly allowed: ReadonlySet<string>;
}

type Member = readonly [name: string, raw: string];
type Op = keyof typeof answers;

const answers = {
  PING: ["OK"],
  AUTH: ["OK", "bad_token", "unauthorized"],
  PUBLISH: ["OK"],
  OPEN: ["OK", "bad_frame"],
  SUBSCRIBE: ["OK", "already_subscribed", "group_conflict", "unknown_id"],
  UNSUBSCRIBE: ["OK", "not_subscribed"],
  PAUSE: ["OK", "not_subscribed"],
  RESUME: ["OK", "not_subscribed"],
  ACK: ["OK", "not_subscribed", "lease_lost"],
  NACK: ["OK", "not_subscribed", "lease_lost"],
  MODACK: ["OK", "not_subscribed", "lease_lost", "unknown_id"],
  CURSOR: ["OK", "unknown_topic", "unknown_id"],
  LATEST: ["OK", "unknown_topic"],
} as const;

const ops = Object.keys(answers) as Op[];
/** All but `internal`, which is a fault of the node whatever was sent. */
const documented = new Set(["OK", ...Object.keys(codes).filter((code) => code !== "internal")]);
const topics = ["h.a", "h.b", "h.__proto__", "h.constructor", "A:b-c_d.9"];
const groups = ["g", "__proto__", "toString", "G:1"];
const json = JSON.stringify;

const strange = [
  "\u0000",
  "\ufeff",
  "é漢字🦄",
  "\ud800",
  "\u2028",
  "%00",
  "../..",
  "\r\nx: y",
  "${7*7}",
  "<script>",
  "a".repeat(300),
];
const wrongTypes = ["null", "true", "7", "-1", "[]", "{}", '[["x"]]', '{"toString":1}'];
const badTopics = ["", "a b", "a..b", ".a", "a.", "x".repeat(201), "a/b", "../etc/passwd", "é", "a\u0000b", "\ud800"];
const badNumbers = ["-1", "1.5", "1e999", "-1e999", "9007199254740993e9", '"1"', "null", "[1]", "true"];
const badPayloads: readonly (readonly [string, string])[] = [
  ["1e999", "bad_frame"],
  ["[[-1e999]]", "bad_frame"],
  [`${"[".repeat(70)}${"]".repeat(70)}`, "bad_frame"],
  [`${'{"a":'.repeat(70)}1${"}".repeat(70)}`, "bad_frame"],
  [json("x".repeat(maxPayload)), "too_large"],
  [json("é".repeat(maxPayload / 2)), "too_large"],
];
const badPublishOptions = [
  '{"key":""}',
  '{"key":7}',
  `{"key":"${"k".repeat(1025)}"}`,
  '{"id":"a b"}',
  '{"id":""}',
  '{"ts":-1}',
  '{"ts":1e999}',
  '{"ts":1.5}',
  '{"headers":{"__proto__":"x"}}',
  '{"headers":{"a":1}}',
  '{"headers":[]}',
  '{"tags":"x"}',
  '{"tags":[1]}',
  '{"tags":[""]}',
  '{"caused_by":["a b"]}',
  '{"sid":""}',
  '{"ttl":1}',
  '{"__proto__":1}',
  '{"constructor":{}}',
];
const badSubscribeOptions = [
  '{"maxInflight":0}',
  '{"maxInflight":10001}',
  '{"maxInflight":1e999}',
  '{"ackTimeoutMs":99}',
  '{"batchSize":-1}',
  '{"from":"never"}',
  '{"from":"ts"}',
  '{"ts":1}',
  '{"from":"offsets","offsets":"0:01"}',
  '{"from":"offsets","offsets":"0:1,0:2"}',
  '{"backoffMs":[]}',
  '{"backoffMs":[-1]}',
  '{"ordering":"keys"}',
  '{"filter":7}',
  '{"filter":{"nope":1}}',
  '{"maxAttempts":1001}',
  '{"__proto__":{"a":1}}',
  '{"toString":1}',
  '{"ephemeral":1}',
];

export class Grammar {
  /** Ids and leases that were seen, one's own and those of others. */
  readonly seen: { id: string; lease: string }[] = [{ id: "nobody", lease: "1-1" }];
  private readonly dice: Dice;
  private readonly batches: boolean;
  private corr = 0;

  constructor(dice: Dice, { batches }: { readonly batches: boolean }) {
    this.dice = dice;
    this.batches = batches;
  }

  next(): Shot {
    const roll = this.dice.below(100);
    if (roll < 30) return this.good();
    if (roll < 65) return this.wrong();
    return this.hit();
  }

  // ------------------------------------------------------------------------------------------------------------------ good

  private good(): Shot {
    const op = this.dice.pick(ops);
    const members = this.shuffled(this.dressed(this.members(op)));
    const text = this.spaced(members);
    return { data: text, kind: `good ${op}`, corr: corrOf(text), allowed: new Set(this.allowed(op)) };
  }

  private allowed(op: Op): readonly string[] {
    return op === "OPEN" ? [this.batches ? "OK" : "bad_frame"] : answers[op];
  }

  private members(op: Op): Member[] {
    const { dice } = this;
    const name: Member = ["op", json(op)];
    // Answers without a corr can only be told apart where there is one that fits.
    const bare = answers[op].length === 1 && dice.chance(20);
    const corr: Member[] = bare ? [] : [["corr", this.nextCorr()]];
    const base = [name, ...corr];
    const topic: Member = ["topic", json(dice.chance(5) ? sharedTopic : dice.pick(topics))];
    const group: Member = ["group", json(dice.pick(groups))];
    // Where nothing can be moved also the group of somebody else may be named.
    const anyPlace: Member[] = dice.chance(20)
      ? [
          ["topic", json(dice.pick([ownTopic, sharedTopic]))],
          ["group", json(controlGroup)],
        ]
      : [topic, group];
    const { id, lease } = dice.pick(this.seen);
    const named: Member[] = dice.chance(60)
      ? [["lease", json(dice.chance(50) ? lease : `${dice.below(9)}-${dice.below(1e9)}`)]]
      : [];
    switch (op) {
      case "PING":
        return base;
      case "AUTH": {
        const given = dice.pick([token, token, `${token}x`, token.slice(0, -1), "", "\u0000", undefined]);
        return [...base, ...(given === undefined ? [] : ([["token", json(given)]] as Member[]))];
      }
      case "PUBLISH":
        return [
          ...base,
          topic,
          ["payload", this.payload()],
          ...(dice.chance(50) ? ([["opts", this.publishOptions()]] as Member[]) : []),
        ];
      case "OPEN":
        return [...base, topic];
      case "SUBSCRIBE":
        return [
          ...base,
          topic[1] === json(sharedTopic) ? ["topic", json(topics[0])] : topic,
          group,
          ["opts", this.subscribeOptions()],
        ];
      case "UNSUBSCRIBE":
      case "PAUSE":
      case "RESUME":
        return [...base, ...anyPlace];
      case "ACK":
        return [...base, ...anyPlace, ["id", json(id)], ...named];
      case "NACK":
        return [
          ...base,
          ...anyPlace,
          ["id", json(id)],
          ...named,
          ["delay_ms", String(dice.below(1000))],
          ["reason", json(dice.pick(strange))],
        ];
      case "MODACK":
        return [...base, ...anyPlace, ["id", json(id)], ...named, ["extend_ms", String(1 + dice.below(60_000))]];
      case "CURSOR": {
        const set = ['"earliest"', '"latest"', '{"offsets":"0:0"}', '{"lastTs":0}', `{"lastId":${json(id)}}`];
        return dice.chance(50) ? [...base, ...anyPlace] : [...base, topic, group, ["set", dice.pick(set)]];
      }
      case "LATEST":
        return [
          ...base,
          topic,
          ...(dice.chance(70) ? ([["keys", dice.pick(['["k"]', "[]", '["__proto__","k0"]'])]] as Member[]) : []),
        ];
      default:
        return op satisfies never;
    }
  }

  private nextCorr(): string {
    this.corr++;
    const forms = [
      `"c${this.corr}"`,
      String(this.corr),
      `"\\u0063${this.corr}"`,
      `"é${this.corr}"`,
      `-${this.corr}.5`,
      `"\\ud800${this.corr}"`,
    ];
    return this.dice.pick(forms);
  }

  private payload(): string {
    const { dice } = this;
    const deep = 1 + dice.below(60);
    return dice.pick([
      "null",
      "0",
      "-0",
      "1e-7",
      '""',
      "[]",
      '{"__proto__":{"a":1},"constructor":null}',
      json(dice.pick(strange)),
      '{"a":1,"a":2}',
      `${"[".repeat(deep)}${"]".repeat(deep)}`,
      json(`${canary}-${"x".repeat(dice.below(5000))}`),
      '"\\ud83e"',
      "123456789012345678901234567890",
    ]);
  }

  private publishOptions(): string {
    const { dice } = this;
    return dice.pick([
      "{}",
      `{"key":"k${dice.below(50)}"}`,
      '{"key":"__proto__"}',
      `{"id":"h:${dice.below(1000)}","key":"k"}`,
      '{"ts":0}',
      '{"ts":8640000000000000}',
      '{"headers":{"toString":"x","a":""}}',
      '{"tags":["a","b"],"sid":"s"}',
      '{"caused_by":["x:1"],"headers":{},"tags":[]}',
      '{"key":"🦄é"}',
    ]);
  }

  private subscribeOptions(): string {
    const from = [
      '"earliest"',
      '"latest"',
      '"ts","ts":0',
      '"offsets","offsets":"0:0,3:7"',
      '"afterId","afterId":"nobody"',
    ];
    const more = [
      "",
      ',"maxInflight":5',
      ',"maxInFlight":1',
      ',"ackTimeoutMs":100',
      ',"manualAck":true',
      ',"backoffMs":[0,5]',
      ',"maxAttempts":3',
    ];
    return `{"from":${this.dice.pick(from)}${this.dice.pick(more)}}`;
  }

  /** What may be added to any frame without changing it. */
  private dressed(members: readonly Member[]): Member[] {
    const { dice } = this;
    const extra: Member[] = [];
    if (dice.chance(10)) extra.push(["__proto__", dice.pick(['{"op":"PUBLISH","corr":"stolen"}', "null", "[]"])]);
    if (dice.chance(10))
      extra.push([
        dice.pick(["constructor", "toString", "hasOwnProperty", "x".repeat(200), "\u0000"]),
        dice.pick(wrongTypes),
      ]);
    return [...members, ...extra];
  }

  // ----------------------------------------------------------------------------------------------------------------- wrong

  /** One fault whose class is known, and with it the code. */
  private wrong(): Shot {
    const { dice } = this;
    const op = dice.pick(ops.filter((one) => one !== "PING" && one !== "AUTH"));
    const members = this.members(op);
    const faults: (readonly [name: string, raw: string, code: string])[] = [
      ["op", dice.pick(['"NOPE"', '"__proto__"', '"ping"', '""', ...wrongTypes]), "bad_frame"],
      ["topic", dice.pick(wrongTypes), "bad_frame"],
      ["topic", json(dice.pick(badTopics)), "bad_topic"],
      ["corr", dice.pick(["null", "[]", "{}", "true", "1e999", json("c".repeat(129))]), "bad_frame"],
    ];
    if (members.some(([name]) => name === "group")) {
      faults.push(
        ["group", dice.pick(wrongTypes), "bad_frame"],
        ["group", json(dice.pick(["", "a/b", "x".repeat(101), "é"])), "bad_group"],
      );
    }
    const [payload, code] = dice.pick(badPayloads);
    if (op === "PUBLISH")
      faults.push(
        ["payload", payload, code],
        ["opts", dice.pick(badPublishOptions), "bad_option"],
        ["opts", dice.pick(["7", "[]", "null", '""']), "bad_frame"],
      );
    if (op === "SUBSCRIBE")
      faults.push(
        ["opts", dice.pick(badSubscribeOptions), "bad_option"],
        ["opts", dice.pick(["7", "[]", "null"]), "bad_frame"],
      );
    if (op === "ACK" || op === "NACK" || op === "MODACK") {
      faults.push(
        ["id", dice.pick([...wrongTypes, '""', '"a b"', json("x".repeat(129))]), "bad_frame"],
        ["lease", dice.pick(wrongTypes), "bad_frame"],
      );
    }
    if (op === "NACK")
      faults.push(["delay_ms", dice.pick(badNumbers), "bad_frame"], ["reason", dice.pick(wrongTypes), "bad_frame"]);
    if (op === "MODACK") faults.push(["extend_ms", dice.pick([...badNumbers, "0"]), "bad_frame"]);
    if (op === "CURSOR")
      faults.push([
        "set",
        dice.pick(["7", "null", "[]", "{}", '"x"', '{"offsets":7}', '{"lastTs":-1}', '{"lastId":"a b"}']),
        "bad_frame",
      ]);
    if (op === "LATEST")
      faults.push(
        ["keys", dice.pick(["7", "{}", "[7]", '[""]', json(Array(1001).fill("k"))]), "bad_frame"],
        ["after", dice.pick(wrongTypes), "bad_frame"],
      );
    const [name, raw, expected] = dice.pick(faults);
    const before = members.findIndex(([member]) => member === name);
    // Of two members of one name the last counts, so the good one may stay in front of it.
    const rest = before >= 0 && dice.chance(80) ? members.toSpliced(before, 1) : members;
    const text = this.spaced([...rest, [name, raw]]);
    return { data: text, kind: `wrong ${name}`, corr: corrOf(text), allowed: new Set([expected]) };
  }

  // ------------------------------------------------------------------------------------------------------------------- hit

  /** Anything may come of it. What the answer must be follows from whether it is still JSON, an object, and of a known op. */
  private hit(): Shot {
    const { dice } = this;
    let text = this.spaced(this.dressed(this.members(dice.pick(ops))));
    const times = 1 + dice.below(3);
    for (let i = 0; i < times; i++) text = this.mutated(text);
    // A random change must not become a frame that moves the group of the control client.
    if (text.includes(`"${controlGroup}"`) && /"set"|SUBSCRIBE/.test(text)) return this.good();
    return { data: text, kind: "hit", corr: corrOf(text), allowed: allowedFor(text) };
  }

  private mutated(text: string): string {
    const { dice } = this;
    const at = dice.below(text.length + 1);
    const to = Math.min(text.length, at + dice.below(20));
    switch (dice.below(10)) {
      case 0:
        return text.slice(0, at);
      case 1:
        return text.slice(0, at) + text.slice(to);
      case 2:
        return text.slice(0, to) + text.slice(at);
      case 3:
        return (
          text.slice(0, at) +
          dice.pick(['"', "{", "}", "[", "]", ",", ":", "\\", "\u0000", "\ufeff", "NaN", "1e999", "-", "\n"]) +
          text.slice(at)
        );
      case 4:
        return text.slice(0, at) + String.fromCharCode(text.charCodeAt(at) ^ (1 << dice.below(7))) + text.slice(at + 1);
      case 5:
        return text + text;
      case 6:
        return `\ufeff${text}`;
      case 7:
        return text.replace(/\d+/, dice.pick(["1e999", "-1", "0x10", "NaN", "Infinity", "01", "99999999999999999999"]));
      case 8:
        return text.replace(/"[^"]*"/, () => json(dice.pick(strange)));
      default:
        return `${"[".repeat(dice.below(2000))}${text}`;
    }
  }

  private shuffled(members: Member[]): Member[] {
    for (let i = members.length - 1; i > 0; i--) {
      const j = this.dice.below(i + 1);
      [members[i], members[j]] = [members[j], members[i]];
    }
    return members;
  }

  private spaced(members: readonly Member[]): string {
    const space = this.dice.chance(80) ? "" : this.dice.pick([" ", "\t", "\r\n", "   "]);
    return `{${space}${members.map(([name, raw]) => `${json(name)}${space}:${space}${raw}`).join(`${space},${space}`)}${space}}`;
  }
}

/** As the node must see it; the socket has made UTF-8 of what JavaScript has in halves. */
function read(text: string): unknown {
  try {
    return JSON.parse(Buffer.from(text).toString());
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

function corrOf(text: string): string | undefined {
  const frame = read(text);
  if (typeof frame !== "object" || frame === null || Array.isArray(frame)) return undefined;
  const { corr } = frame as { corr?: unknown };
  const good = typeof corr === "string" ? corr.length <= 128 : Number.isFinite(corr);
  return good ? json(corr) : undefined;
}

function allowedFor(text: string): ReadonlySet<string> {
  const frame = read(text);
  if (frame === undefined) return new Set(["bad_json"]);
  if (typeof frame !== "object" || frame === null || Array.isArray(frame)) return new Set(["bad_frame"]);
  const { op, corr } = frame as { op?: unknown; corr?: unknown };
  if (corr !== undefined && corrOf(text) === undefined) return new Set(["bad_frame"]);
  return typeof op === "string" && ops.includes(op as Op) ? documented : new Set(["bad_frame"]);
}
