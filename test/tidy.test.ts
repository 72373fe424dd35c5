// House rules, checked over the source tree. Each rule is a function from a file to its problems, and each is shown a bad
// sample first, so that a rule which has gone blind is found too. The tests run with the repository as working directory.

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { isBuiltin } from "node:module";
import { posix } from "node:path";
import { build } from "esbuild";
import { test } from "uvu";
import * as assert from "uvu/assert";

interface Import {
  readonly specifier: string;
  readonly typesOnly: boolean;
  readonly line: number;
}

type Check = (path: string, text: string) => string[];

const entries = [
  "src/main.ts",
  "src/narthex.ts",
  "src/runtime/host.ts",
  "src/client/client.ts",
  // The build for browsers has it in the place of dial-node.ts.
  "src/client/dial-browser.ts",
];

// ---------------------------------------------------------------------------------------------------------------------
// Reading source

/**
 * The text with comments blanked out, and with `strings: false` the insides of string, template and regex literals too.
 * Lengths and line breaks stay, so an index means the same place in all three texts.
 */
function blank(text: string, { strings }: { strings: boolean }): string {
  // What can stand here: a comment, a string, a template up to its end or `${`, a regex where a value may start.
  const token =
    /\/\/[^\n]*|\/\*[\s\S]*?\*\/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`|[{}]|\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\[\n])+\//g;
  const hide = (part: string) => part.replace(/[^\n]/g, " ");
  let out = "";
  let at = 0;
  // For each open `${`, how many braces are open inside it.
  const templates: number[] = [];

  const readTemplate = () => {
    const end = /(?:\\[\s\S]|\$(?!\{)|[^`\\$])*(?:`|\$\{|$)/y;
    end.lastIndex = at;
    const part = end.exec(text)![0];
    const closer = part.endsWith("${") ? "${" : part.endsWith("`") ? "`" : "";
    out += strings ? part : hide(part.slice(0, part.length - closer.length)) + closer;
    at += part.length;
    if (closer === "${") templates.push(0);
  };

  for (;;) {
    token.lastIndex = at;
    const match = token.exec(text);
    if (!match) return out + text.slice(at);
    const part = match[0];
    out += text.slice(at, match.index);
    at = match.index + part.length;
    if (part.startsWith("//") || part.startsWith("/*")) {
      out += hide(part);
    } else if (part.startsWith("/")) {
      const startsValue = /(?:^|[(,=:[!&|?{};+\-*%<>~^]|\b(?:return|typeof|case|in|of|void))\s*$/.test(out);
      if (startsValue) {
        out += strings ? part : `/${hide(part.slice(1, -1))}/`;
      } else {
        out += "/";
        at = match.index + 1;
      }
    } else if (part === "`") {
      out += part;
      readTemplate();
    } else if (part === "{") {
      out += part;
      if (templates.length > 0) templates[templates.length - 1]!++;
    } else if (part === "}") {
      out += part;
      if (templates.at(-1) === 0) {
        templates.pop();
        readTemplate();
      } else if (templates.length > 0) {
        templates[templates.length - 1]!--;
      }
    } else {
      out += strings ? part : part[0] + hide(part.slice(1, -1)) + part[0];
    }
  }
}

function lineAt(text: string, index: number): number {
  return text.slice(0, index).split("\n").length;
}

function importsOf(text: string): Import[] {
  const source = blank(text, { strings: true });
  const code = blank(text, { strings: false });
  const pattern =
    /\b(?:import|export)\s+(?<clause>type\s+[\w*{][^;"'`]*?|[\w*{][^;"'`]*?)\s*\bfrom\s*["'](?<from>[^"']+)["']|\bimport\s*\(?\s*["'](?<bare>[^"']+)["']/g;
  const imports: Import[] = [];
  for (const match of source.matchAll(pattern)) {
    if (!/^(?:import|export)/.test(code.slice(match.index))) continue; // the words stand in a string
    const clause = match.groups!.clause ?? "";
    const named = /^\{([\s\S]*)\}$/
      .exec(clause)?.[1]
      ?.split(",")
      .filter((name) => name.trim() !== "");
    imports.push({
      specifier: (match.groups!.from ?? match.groups!.bare)!,
      typesOnly: /^type\s+(?!from\b)/.test(clause) || (named?.every((name) => /^\s*type\s/.test(name)) ?? false),
      line: lineAt(text, match.index),
    });
  }
  return imports;
}

function find(path: string, text: string, code: string, pattern: RegExp, say: (found: string) => string): string[] {
  return [...code.matchAll(pattern)].map((match) => `${path}:${lineAt(text, match.index)}: ${say(match[0].trim())}`);
}

// ---------------------------------------------------------------------------------------------------------------------
// The rules

/** What the files of a folder may import from src/. The programs on top (see `isTop`) may import everything. */
const mayImport: Record<string, (target: string, typesOnly: boolean) => boolean> = {
  protocol: (target) => inFolder(target, "protocol"),
  actors: (target) => inFolder(target, "protocol", "actors"),
  store: (target) => inFolder(target, "protocol", "store", "config.ts"),
  runtime: (target, typesOnly) =>
    inFolder(target, "protocol", "store", "runtime", "config.ts") ||
    target === "src/actors/kinds.ts" ||
    (typesOnly && inFolder(target, "actors")),
  // The messages are the whole conversation with the actors, names of cells included; of the actors themselves the front knows none.
  front: (target) =>
    inFolder(target, "protocol", "runtime", "front", "config.ts") || target === "src/actors/messages.ts",
  bus: (target) => inFolder(target, "protocol", "bus"),
  client: (target) => inFolder(target, "protocol", "bus", "client"),
  cli: (target) =>
    inFolder(target, "protocol", "bus", "client", "cli", "config.ts") ||
    // Doctor looks at a database with the eyes of the store, and changes nothing there.
    ["src/runtime/clock.ts", "src/store/mongo/inspection.ts"].includes(target),
  "config.ts": (target) => inFolder(target, "protocol"),
};

/** Folders that must run without Node: in a browser, actors/ under simulated time. */
const withoutNode = ["protocol", "actors", "bus", "client"];
const withNode = "src/client/dial-node.ts";

function inFolder(path: string, ...names: string[]): boolean {
  return names.includes(path.split("/")[1]!);
}

function isTop(path: string): boolean {
  return ["src/main.ts", "src/narthex.ts", "src/node.ts"].includes(path);
}

const checkImports: Check = (path, text) => {
  if (isTop(path)) return [];
  const allowed = mayImport[path.split("/")[1]!];
  if (!allowed) return [`${path}: test/tidy.test.ts does not say what ${path.split("/")[1]} may import`];
  const problems: string[] = [];
  for (const { specifier, typesOnly, line } of importsOf(text)) {
    const where = `${path}:${line}`;
    if (!specifier.startsWith(".")) {
      if (inFolder(path, ...withoutNode) && path !== withNode) {
        const what = isBuiltin(specifier) ? "a Node module" : "a package";
        problems.push(`${where}: imports ${what}, ${specifier}`);
      }
      continue;
    }
    const target = posix.join(posix.dirname(path), specifier);
    if (!target.endsWith(".ts")) problems.push(`${where}: a relative import ends in .ts, not ${specifier}`);
    else if (!allowed(target, typesOnly)) {
      problems.push(`${where}: may not import ${typesOnly ? "types" : "values"} from ${target}`);
    }
  }
  return problems;
};

const checkBuffer: Check = (path, text) => {
  if (!inFolder(path, "protocol", "bus", "client") || path === withNode) return [];
  const code = blank(text, { strings: false });
  return find(path, text, code, /\bBuffer\b/g, () => "Buffer does not exist in a browser");
};

const checkClock: Check = (path, text) => {
  if (path === "src/runtime/clock.ts" || path === "src/client/clock.ts") return [];
  const code = blank(text, { strings: false });
  const say = (found: string) => `${found}: time, chance and ids come from runtime/clock.ts`;
  // A timer's name behind a dot belongs to something else (socket.setTimeout), unless the dot follows the global object.
  // Giving way to what waits in the event loop is no time of its own.
  const ownTimer = inFolder(path, "runtime", "store")
    ? "setTimeout|setInterval"
    : "setTimeout|setInterval|setImmediate";
  const timers = new RegExp(`(?<![.\\w$])(?:globalThis\\s*\\.\\s*)?(?:${ownTimer})\\b(?!\\s*\\??:)`, "g");
  const others =
    /\bDate\s*\.\s*now\b|\bnew\s+Date\b(?!\s*\(\s*[^\s)])|(?<!\bnew\s+|[.\w$])Date\s*\(|\bMath\s*\.\s*random\b|\bperformance\s*\.\s*now\b|\bhrtime\b|\brandomUUID\b/g;
  return [...find(path, text, code, timers, say), ...find(path, text, code, others, say)];
};

const checkWords: Check = (path, text) => {
  const code = blank(text, { strings: false });
  const anyType = /(?:[:<,|&=([]|=>|\bas|\bextends|\bkeyof|\breadonly|\bis)\s*any\b(?!\s*[(:.=?])/g;
  const emptyCatch =
    /\bcatch\s*(?:\([^)]*\)\s*)?\{\s*\}|\.\s*catch\s*\(\s*(?:async\s*)?(?:\([^)]*\)|\w+)\s*=>\s*(?:\{\s*\}|undefined|null)\s*,?\s*\)/g;
  return [
    ...find(path, text, code, anyType, () => "the type any"),
    ...find(path, text, code, emptyCatch, () => "an empty catch (a comment does not fill it)"),
    ...find(path, text, text, /\b(?:TODO|FIXME)\b/g, (found) => found),
  ];
};

const checkName: Check = (path) => {
  const attic = path
    .replace(/\.ts$/, "")
    .split("/")
    .find((name) => ["index", "utils", "util", "helpers", "helper", "common", "types"].includes(name));
  return attic ? [`${path}: "${attic}" does not say what is in it`] : [];
};

/** The files that no entry reaches, however they import each other. */
function unreached(files: ReadonlyMap<string, string>): string[] {
  const reached = new Set<string>();
  const waiting = entries.filter((path) => files.has(path));
  for (let path = waiting.pop(); path !== undefined; path = waiting.pop()) {
    if (reached.has(path)) continue;
    reached.add(path);
    for (const { specifier } of importsOf(files.get(path) ?? "")) {
      const target = posix.join(posix.dirname(path), specifier);
      if (specifier.startsWith(".") && files.has(target)) waiting.push(target);
    }
  }
  return [...files.keys()].filter((path) => !reached.has(path)).map((path) => `${path}: no entry imports it`);
}

/** The list of codes among the exports of protocol/failure.ts: the array, set or table that has `bad_json` in it. */
function codesOf(exported: Record<string, unknown>): string[] {
  for (const value of Object.values(exported)) {
    if (typeof value !== "object" || value === null) continue;
    const codes: unknown[] = Symbol.iterator in value ? [...(value as Iterable<unknown>)] : Object.keys(value);
    const names = codes.map((code) => (Array.isArray(code) ? String(code[0]) : String(code)));
    if (names.includes("bad_json")) return names;
  }
  return [];
}

/** The codes in the first column of each Markdown table whose first heading is "code"; numbers are close codes. */
function codesInTables(markdown: string): string[] {
  const codes: string[] = [];
  let inTable = false;
  let before = "";
  for (const line of markdown.split("\n")) {
    const first = /^\s*\|([^|]*)\|/.exec(line)?.[1]?.trim();
    if (first === undefined) inTable = false;
    else if (/^:?-+:?$/.test(first)) inTable = /^\W*codes?\W*$/i.test(before);
    else if (inTable) codes.push(...[...first.matchAll(/`([a-z][a-z_]*)`/g)].map((match) => match[1]!));
    before = first ?? "";
  }
  return codes;
}

function compareCodes(source: readonly string[], documented: readonly string[]): string[] {
  return [
    ...(source.length === 0 ? ["src/protocol/failure.ts: exports no list of codes"] : []),
    ...(documented.length === 0 ? ["PROTOCOL.md: has no table of codes (first heading: code)"] : []),
    ...source.filter((code) => !documented.includes(code)).map((code) => `PROTOCOL.md: \`${code}\` is missing`),
    ...documented
      .filter((code) => !source.includes(code))
      .map((code) => `PROTOCOL.md: \`${code}\` is not in the source`),
  ];
}

// ---------------------------------------------------------------------------------------------------------------------
// The rules, shown bad samples

const count = (check: Check, path: string, text: string) => check(path, text).length;

test("comments, strings, templates and regexes are told apart", () => {
  const text = 'a("x // y"); // "z"\nb(`t ${c("u")} /* v */`); d = /["`]/; e = f / g / h; /* i */ j';
  const code = blank(text, { strings: false });
  assert.is(code.replace(/ +/g, " "), 'a(" "); \nb(` ${c(" ")} `); d = / /; e = f / g / h; j');
  assert.is(code.length, text.length);
  assert.is(blank(text, { strings: true }).length, text.length);
  assert.is(blank("`a${ {b:1} }c` + x", { strings: false }), "` ${ {b:1} } ` + x");
});

test("every form of import is seen", () => {
  const text = [
    'import a from "./a.ts";',
    'import type { B } from "./b.ts";',
    'import {\n  type C,\n  type D,\n} from "./c.ts";',
    'import { type E, f } from "./e.ts";',
    'import "./g.ts";',
    'export * from "./h.ts";',
    'export type { I } from "./i.ts";',
    'const j = await import("./j.ts");',
    'import * as k from "node:fs";',
    '// import l from "./l.ts";',
    'const m = `import m from "./m.ts"`;',
    "export const n = 1;",
  ].join("\n");
  assert.equal(
    importsOf(text).map(({ specifier, typesOnly }) => (typesOnly ? `type ${specifier}` : specifier)),
    ["./a.ts", "type ./b.ts", "type ./c.ts", "./e.ts", "./g.ts", "./h.ts", "type ./i.ts", "./j.ts", "node:fs"],
  );
});

test("an import against the direction is found", () => {
  const bad: [string, string][] = [
    ["src/protocol/decode.ts", 'import { x } from "../actors/messages.ts";'],
    ["src/protocol/decode.ts", 'import type { Config } from "../config.ts";'],
    ["src/protocol/decode.ts", 'import { createHash } from "node:crypto";'],
    ["src/protocol/decode.ts", 'import { x } from "./frames";'],
    ["src/actors/partition.ts", 'import type { Store } from "../store/store.ts";'],
    ["src/actors/partition.ts", 'import type { Config } from "../config.ts";'],
    ["src/actors/partition.ts", 'import assert from "assert";'],
    ["src/store/memory.ts", 'import type { Message } from "../actors/messages.ts";'],
    ["src/store/log/segment.ts", 'import { clock } from "../../runtime/clock.ts";'],
    ["src/runtime/host.ts", 'import { Partition } from "../actors/partition.ts";'],
    ["src/runtime/pool.ts", 'import { Session } from "../front/session.ts";'],
    ["src/front/router.ts", 'import { kinds } from "../actors/kinds.ts";'],
    ["src/front/router.ts", 'import type { Partition } from "../actors/partition.ts";'],
    ["src/front/router.ts", 'import type { Store } from "../store/store.ts";'],
    ["src/config.ts", 'import type { Store } from "./store/store.ts";'],
    ["src/attic/box.ts", ""],
  ];
  for (const [path, text] of bad) assert.is(count(checkImports, path, text), 1, `${path}: ${text}`);
  const good: [string, string][] = [
    ["src/protocol/decode.ts", 'import { x } from "./frames.ts";'],
    ["src/actors/partition.ts", 'import { x } from "../protocol/ids.ts";'],
    ["src/store/log/segment.ts", 'import { open } from "node:fs"; import { limits } from "../../config.ts";'],
    [
      "src/runtime/host.ts",
      'import { kinds } from "../actors/kinds.ts"; import type { P } from "../actors/partition.ts";',
    ],
    ["src/front/router.ts", 'import type { Message } from "../actors/messages.ts"; import { WebSocket } from "ws";'],
    ["src/config.ts", 'import { x } from "./protocol/ids.ts";'],
    ["src/node.ts", 'import { x } from "./store/memory.ts";'],
  ];
  for (const [path, text] of good) assert.equal(checkImports(path, text), []);
});

test("Buffer in protocol/ is found", () => {
  assert.is(count(checkBuffer, "src/protocol/encode.ts", "const a = Buffer.from(b);"), 1);
  assert.is(count(checkBuffer, "src/protocol/encode.ts", "const a = new ArrayBuffer(1); // no Buffer here"), 0);
  assert.is(count(checkBuffer, "src/front/session.ts", "const a = Buffer.from(b);"), 0);
});

test("a clock, a timer or a dice of one's own is found", () => {
  const bad = [
    "Date.now()",
    "new Date()",
    "new Date;",
    "Date()",
    "setTimeout(f, 1)",
    "globalThis.setTimeout(f, 1)",
    "const later = { setTimeout };",
    "setInterval(f, 1)",
    "setImmediate(f)",
    "Math.random()",
    "performance.now()",
    "process.hrtime.bigint()",
    "crypto.randomUUID()",
    'import { setTimeout as sleep } from "node:timers/promises";',
  ];
  for (const text of bad) assert.is(count(checkClock, "src/main.ts", text), 1, text);
  for (const text of bad) assert.is(count(checkClock, "src/runtime/clock.ts", text), 0, text);
  assert.is(count(checkClock, "src/runtime/mailbox.ts", "setImmediate(f)"), 0);
  assert.is(count(checkClock, "src/runtime/mailbox.ts", "setTimeout(f)"), 1);
  for (const text of ["new Date(ts)", "socket.setTimeout(1)", "// Date.now()", '"Date.now()"', "candidate(1)"]) {
    assert.is(count(checkClock, "src/front/session.ts", text), 0, text);
  }
});

test("the type any, an empty catch and a reminder are found", () => {
  const bad = [
    "let a: any;",
    "const a = b as any;",
    "type A = Map<string, any>;",
    "function f(a: any[]) {}",
    "type A = any | null;",
    "try { f(); } catch {}",
    "try { f(); } catch (error) {\n  // cannot happen\n}",
    "f().catch(() => {});",
    "f().catch((_error) => undefined);",
    "// TODO: later",
    "/* FIXME */",
  ];
  for (const text of bad) assert.is(count(checkWords, "src/node.ts", text), 1, text);
  for (const text of [
    "// any of them",
    "await Promise.any(a);",
    'const a = "as any";',
    "try { f(); } catch (error) { g(error); }",
    "f().catch((error) => g(error));",
  ]) {
    assert.is(count(checkWords, "src/node.ts", text), 0, text);
  }
});

test("a name that says nothing is found", () => {
  for (const path of [
    "src/store/index.ts",
    "src/utils.ts",
    "src/front/helpers.ts",
    "src/common/x.ts",
    "src/types.ts",
  ]) {
    assert.is(count(checkName, path, ""), 1, path);
  }
  assert.equal(checkName("src/store/log/index-block.ts", ""), []);
});

test("a file that no entry reaches is found", () => {
  const files = new Map([
    ["src/main.ts", 'import { a } from "./a.ts";'],
    ["src/a.ts", 'import type { B } from "./front/b.ts";'],
    ["src/front/b.ts", 'import "../a.ts";'],
    ["src/left.ts", 'import "./right.ts";'],
    ["src/right.ts", 'import "./left.ts";'],
  ]);
  assert.equal(unreached(files), ["src/left.ts: no entry imports it", "src/right.ts: no entry imports it"]);
});

test("a code that only one side knows is found", () => {
  const tables =
    "| code | HTTP |\n|---|---|\n| `bad_json` | 400 |\n| `gone` | 410 |\n\n| frame |\n|---|\n| `other` |\n";
  const closeCodes = "| Code | why |\n|:--|---|\n| `4401` | no AUTH |\n";
  assert.equal(codesInTables(tables + closeCodes), ["bad_json", "gone"]);
  assert.equal(codesOf({ other: ["x"], codes: ["bad_json", "limit"] }), ["bad_json", "limit"]);
  assert.equal(codesOf({ failures: { bad_json: { http: 400 }, limit: {} } }), ["bad_json", "limit"]);
  assert.equal(codesOf({ failures: new Map([["bad_json", 1]]) }), ["bad_json"]);
  assert.equal(compareCodes(["bad_json", "limit"], ["bad_json", "gone"]), [
    "PROTOCOL.md: `limit` is missing",
    "PROTOCOL.md: `gone` is not in the source",
  ]);
  assert.is(compareCodes([], []).length, 2);
  assert.equal(compareCodes(["limit"], ["limit"]), []);
});

// ---------------------------------------------------------------------------------------------------------------------
// The rules, over the source

function readSource(): Map<string, string> {
  const files = existsSync("src") ? readdirSync("src", { recursive: true, encoding: "utf8" }) : [];
  const paths = files.map((file) => `src/${file.replaceAll("\\", "/")}`).filter((path) => path.endsWith(".ts"));
  return new Map(paths.sort().map((path) => [path, readFileSync(path, "utf8")]));
}

/** A test that waits for files which are still to be written says so, and counts as skipped. */
function testOnce(needed: string[], name: string, run: () => void | Promise<void>): void {
  const missing = needed.filter((path) => !existsSync(path));
  if (missing.length === 0) return void test(name, run);
  console.log(`skipped: ${name}: ${missing.join(" and ")} not written yet`);
  test.skip(name, run);
}

const source = readSource();

function assertClean(problems: string[]): void {
  assert.ok(problems.length === 0, `\n    ${problems.join("\n    ")}`);
}

for (const [name, check] of Object.entries({
  "imports point one way": checkImports,
  "protocol/, bus/ and client/ run in a browser": checkBuffer,
  "only the clocks of runtime/ and client/ know the time": checkClock,
  "no any, no empty catch, no reminders": checkWords,
  "each file is named for what is in it": checkName,
})) {
  testOnce(["src"], name, () => assertClean([...source].flatMap(([path, text]) => check(path, text))));
}

testOnce(entries, "each file is reached from an entry", () => assertClean(unreached(source)));

testOnce(["src/protocol/failure.ts", "PROTOCOL.md"], "PROTOCOL.md and the source know the same codes", async () => {
  const { outputFiles } = await build({
    entryPoints: ["src/protocol/failure.ts"],
    bundle: true,
    format: "esm",
    write: false,
  });
  const encoded = Buffer.from(outputFiles[0]!.contents).toString("base64");
  const exported: Record<string, unknown> = await import(`data:text/javascript;base64,${encoded}`);
  assertClean(compareCodes(codesOf(exported), codesInTables(readFileSync("PROTOCOL.md", "utf8"))));
});

test.run();
