// The runner of documents, shown small documents: those that are right, and those that are wrong in one way each.

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually } from "../support/deadline.ts";
import { readBlocks, requireFreePorts, runDocument, type Step, stepsOf } from "../support/readme.ts";

const folders: string[] = [];
const env = { PATH: process.env.PATH };

function fresh(): string {
  const folder = mkdtempSync(join(tmpdir(), "narthex-readme-"));
  folders.push(folder);
  return folder;
}

/** A document from its paragraphs; ~~~ stands for a fence. */
const document = (...parts: string[]) => `${parts.join("\n\n").replaceAll("~~~", "```")}\n`;

async function run(text: string, folder = fresh(), commandMs = 10_000): Promise<Step[]> {
  return runDocument(text, { folder, env, commandMs });
}

async function fault(text: string, commandMs?: number): Promise<string> {
  const result = await run(text, fresh(), commandMs).catch((error: Error) => error);
  if (!(result instanceof Error)) throw new Error("the document was taken for right");
  return result.message;
}

test("blocks are read with their language, their line and the text before them", () => {
  const blocks = readBlocks(document("# A", "~~~sh\na\n\nb\n~~~", "then", "~~~js x.mjs\nc\n~~~", "~~~\nd\n~~~"));
  assert.equal(blocks, [
    { language: "sh", info: "", text: "a\n\nb", line: 4, before: "# A\n" },
    { language: "js", info: "x.mjs", text: "c", line: 12, before: "\nthen\n" },
    { language: "", info: "", text: "d", line: 16, before: "" },
  ]);
  assert.throws(() => readBlocks("```sh\na\n"), "line 1: this block has no end");
});

test("a file is named by the sentence before it or behind its language, and else only shown", () => {
  const kinds = (...parts: string[]) =>
    stepsOf(readBlocks(document(...parts))).map((step) => (step.kind === "file" ? step.name : step.kind));
  assert.equal(kinds("A consumer, in `billing.mjs`:", "~~~js\n1\n~~~"), ["billing.mjs"]);
  assert.equal(kinds("Use `a.js` in `src/b.ts`:", "~~~ts\n1\n~~~"), ["src/b.ts"]);
  assert.equal(kinds("~~~js page/index.html\n1\n~~~"), ["page/index.html"]);
  assert.equal(kinds('~~~js title="a.mjs"\n1\n~~~'), ["a.mjs"]);
  assert.equal(kinds("In your own process, without `a.mjs`.", "~~~js\n1\n~~~"), ["shown"]);
  assert.equal(kinds("`a.mjs` is long:", "A paragraph later:", "~~~js\n1\n~~~"), ["shown"]);
  assert.equal(kinds("<!-- not run: it would not end -->", "~~~sh\nsleep inf\n~~~", "~~~\nnothing\n~~~"), ["shown"]);
});

test("commands are run line by line in one shell, files are written, and the output is what the document says", async () => {
  const folder = fresh();
  const steps = await run(
    document(
      "~~~sh\nmkdir shop && cd shop\nexport WHO='the\nworld'\n# a remark\necho nothing shown\n~~~",
      "In `hello.mjs`:",
      "~~~js\nconsole.log('hello', process.env.WHO);\nconsole.error('a \"quote\" (and) [more].*');\n~~~",
      "~~~sh\nnode hello.mjs\ncat <<EOF\nhere\nEOF\necho a \\\n  b\n~~~",
      "It prints:",
      '~~~\nhello the\nworld\na "quote" (and) [more].*\nhere\na b\n~~~',
    ),
    folder,
  );
  assert.equal(
    steps.map((step) => step.kind),
    ["run", "file", "run"],
  );
  assert.match(readFileSync(join(folder, "shop", "hello.mjs"), "utf8"), /^console/);
});

test("one character that is wrong fails, by the line of the document", async () => {
  const text = (shown: string) => document("~~~sh\necho one; echo two\n~~~", `~~~\n${shown}\n~~~`);
  await run(text("one\ntwo"));
  assert.is(
    await fault(text("one\ntwO")),
    "line 6: echo one; echo two\n  the document says: twO\n  it is:             two\n  all of it:\none\ntwo\n",
  );
  for (const wrong of ["one", "one\ntwo\nthree", "one \ntwo", "One\ntwo", "two", "one\n\ntwo", ""]) {
    assert.match(await fault(text(wrong)), "line 6: echo one; echo two", JSON.stringify(wrong));
  }
});

test("what cannot be the same twice is not compared, everything around it is", async () => {
  const says = (printed: string, shown: string) => document(`~~~sh\necho '${printed}'\n~~~`, `~~~\n${shown}\n~~~`);
  const pairs = [
    ["at 2026-01-02T03:04:05.678Z", "at 2025-11-12T13:14:15.016Z"],
    ['{"ts":1794997503466}', '{"ts":1763459999999}'],
    ["took 12.5 ms   done", "took 1 ms done"],
    ["took 3s", "took 12s"],
    ["1,234 events/s", "98,765 events/s"],
    ["http://127.0.0.1:43567/", "http://127.0.0.1:51234/"],
    ["by process 123", "by process 99999"],
    ["workers=1 auth=none", "workers=15 auth=none"],
  ] as const;
  for (const [printed, shown] of pairs) await run(says(printed, shown));
  const wrong = [
    ["http://127.0.0.1:8090/", "http://127.0.0.1:8091/"],
    ["took 12.5 ms", "took 12.5 events"],
    ["took 3s.", "took 3s"],
    ['{"offset":1}', '{"offset":2}'],
    ["attempt 1", "attempt 2"],
    ["version 0.1.0", "version 0.1.1"],
  ] as const;
  for (const [printed, shown] of wrong) assert.match(await fault(says(printed, shown)), "line 6", shown);
});

test("an id is compared by where it comes again, and can be used in a later command", async () => {
  const id = (n: number) => `0190000${n}-0000-7000-8000-000000000000`;
  const real = document(
    `~~~sh\necho ${id(1)} ${id(2)}\n~~~`,
    `~~~\n${id(8)} ${id(9)}\n~~~`,
    `~~~sh\necho again ${id(9)}\n~~~`,
    `~~~\nagain ${id(9)}\n~~~`,
  );
  await run(real);
  const other = document(`~~~sh\necho ${id(1)} ${id(2)}\necho ${id(1)}\n~~~`, `~~~\n${id(8)} ${id(9)}\n${id(9)}\n~~~`);
  assert.match(await fault(other), "line 7");
});

test("… stands for any lines, and for nothing else", async () => {
  const text = (...shown: string[]) => document("~~~sh\nseq 1 5\n~~~", `~~~\n${shown.join("\n")}\n~~~`);
  await run(text("1", "…", "5"));
  await run(text("…"));
  await run(text("1", "2", "…", "3", "4", "5"));
  assert.match(await fault(text("1", "…", "6")), "the document says: 6");
  assert.match(await fault(text("…", "4")), "line 6");
  assert.match(await fault(text("1…", "5")), "line 6");
});

test("a command that fails fails the document, unless its output is shown", async () => {
  assert.is(
    await fault(document("~~~sh\ntrue\necho why; false\ntrue\n~~~")),
    "line 2: echo why; false ended with 1; it printed:\nwhy\n",
  );
  await run(document("~~~sh\necho why; false\n~~~", "~~~\nwhy\n~~~"));
});

test("a program that goes on runs in its terminal; a second terminal is in the same folder", async () => {
  const server =
    "setInterval(() => undefined, 1000); console.log('up'); process.on('SIGUSR1', () => console.log('asked'))";
  const text = document(
    "In `server.mjs`:",
    `~~~js\n${server}\n~~~`,
    "~~~sh\nmkdir here && mv server.mjs here && cd here\nnode server.mjs & echo $! > pid; wait\n~~~",
    "~~~\nup\n~~~",
    "In a second terminal:",
    "~~~sh\nkill -USR1 $(cat pid)\n~~~",
    "The first terminal says:",
    "~~~\nasked\n~~~",
    "Press Ctrl-C there, then:",
    "~~~sh\necho free\n~~~",
    "~~~\nfree\n~~~",
  );
  await run(text);
  assert.match(await fault(text.replace("asked\n```", "askeD\n```"), 1500), "the document says: askeD");
  assert.match(
    await fault(text.replace("Press Ctrl-C there, then:", "Then:"), 1500),
    "this terminal is still busy with:",
  );
});

test("what a program prints after all that is shown counts too", async () => {
  const text = document("~~~sh\necho one; sleep 0.1; echo two; sleep 5\n~~~", "~~~\none\n~~~");
  assert.match(await fault(text), "the document says: (nothing more)\n  it is:             two");
});

test("nothing that was started is left", async () => {
  const folder = fresh();
  await run(
    document("~~~sh\necho $$ > shell; (sleep 300; :) & echo $! > pid; echo up; wait\n~~~", "~~~\nup\n~~~"),
    folder,
  );
  for (const name of ["shell", "pid"]) {
    const pid = Number(readFileSync(join(folder, name), "utf8"));
    await eventually(2000, `${name} has ended`, () => hasEnded(pid));
  }
});

function hasEnded(pid: number): boolean {
  try {
    // A zombie has.
    return readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]!.startsWith("Z");
  } catch (error) {
    return ["ENOENT", "ESRCH"].includes((error as NodeJS.ErrnoException).code ?? "");
  }
}

test("a port that is taken is named", async () => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  const error = await requireFreePorts([port]).catch((reason: Error) => reason);
  assert.is((error as Error).message, `port ${port} is taken, and the document needs it: end what has it`);
  server.close();
  await new Promise((resolve) => server.once("close", resolve));
  await requireFreePorts([port]);
});

test.after(() => {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});
test.run();
