// The list of deliberate faults fits the source: each can still be applied, and each says what it breaks.

import { existsSync, readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { test } from "uvu";
import * as assert from "uvu/assert";

interface Edit {
  readonly file: string;
  readonly find: string;
  readonly replace: string;
}

interface Mutation {
  readonly name: string;
  readonly fault: string;
  readonly promise: string;
  readonly words: readonly string[];
}

interface List {
  readonly mutations: readonly Mutation[];
  editsOf(mutation: Mutation): readonly Edit[];
  faultOf(edit: Edit, text: string): string | undefined;
}

const { mutations, editsOf, faultOf } = (await import(
  pathToFileURL(resolve("test/mutation/mutations.mjs")).href
)) as List;
const edit: Edit = { file: "a.ts", find: "one", replace: "two" };

test("a text that is not there exactly once, or that stays the same, is found", () => {
  assert.is(faultOf(edit, "one line"), undefined);
  assert.match(faultOf(edit, "another line") ?? "", "0 times");
  assert.match(faultOf(edit, "one and one") ?? "", "2 times");
  assert.match(faultOf({ ...edit, replace: "one" }, "one line") ?? "", "nothing is replaced");
});

test("each mutation can be applied to the source as it is", () => {
  const rotten = mutations.flatMap((mutation) =>
    editsOf(mutation)
      .map((each) => (existsSync(each.file) ? faultOf(each, readFileSync(each.file, "utf8")) : `no ${each.file}`))
      .filter((fault) => fault !== undefined)
      .map((fault) => `${mutation.name}: ${fault}`),
  );
  assert.equal(rotten, []);
});

test("there are at least twenty, each with a name of its own and what it breaks", () => {
  assert.ok(mutations.length >= 20);
  assert.is(new Set(mutations.map(({ name }) => name)).size, mutations.length);
  for (const { name, fault, promise, words } of mutations) {
    assert.match(name, /^[a-z]+(-[a-z]+)+$/);
    assert.ok(fault.length > 0 && promise.length > 0 && words.length > 0, name);
  }
});

test("no mutation touches anything but the source", () => {
  for (const mutation of mutations) for (const { file } of editsOf(mutation)) assert.match(file, /^src\//);
});

test.run();
