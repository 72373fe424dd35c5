import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { makeProgram } from "../../src/cli/cli.ts";
import { CliError } from "../../src/cli/context.ts";
import { nodeToken, nodeUrl, wantsColor } from "../../src/cli/open-context.ts";
import { dataFolder } from "../support/node-process.ts";

function refusal(make: () => unknown): string {
  try {
    make();
  } catch (error) {
    assert.instance(error, CliError);
    assert.is((error as CliError).exitCode, 2);
    return (error as CliError).message;
  }
  throw new Error("nothing was refused");
}

test("the node is where --url says, or NARTHEX_URL, or on this machine", () => {
  assert.is(nodeUrl(undefined, {}), "http://127.0.0.1:8090");
  assert.is(nodeUrl(undefined, { NARTHEX_URL: "" }), "http://127.0.0.1:8090");
  assert.is(nodeUrl(undefined, { NARTHEX_URL: "https://bus.example.com/" }), "https://bus.example.com");
  assert.is(nodeUrl("ws://10.0.0.1:9000", { NARTHEX_URL: "https://other" }), "http://10.0.0.1:9000");
  assert.is(nodeUrl("wss://bus.example.com/narthex/", {}), "https://bus.example.com/narthex");
});

test("an address that is none is refused by name, and a password in it is not repeated", () => {
  for (const text of ["localhost:8090", "bus", "ftp://x", "http://x?token=s3cret", "http://x#s3cret", ""]) {
    assert.match(
      refusal(() => nodeUrl(text, {})),
      /^--url must be the address of a node, such as/,
    );
  }
  const line = refusal(() => nodeUrl(undefined, { NARTHEX_URL: "http://me:s3cret@bus" }));
  assert.match(line, /^NARTHEX_URL has a password in it.*NARTHEX_TOKEN/);
  assert.not.match(line, "s3cret");
});

test("the token is that of --token-file, of NARTHEX_TOKEN or of WS_TOKEN", () => {
  const folder = dataFolder();
  const path = join(folder.path, "token.txt");
  writeFileSync(path, "  from-file\n");
  const env = { NARTHEX_TOKEN: "mine", WS_TOKEN: "node" };
  assert.is(nodeToken(path, env), "from-file");
  assert.is(nodeToken(undefined, env), "mine");
  assert.is(nodeToken(undefined, { ...env, NARTHEX_TOKEN: "" }), "node");
  assert.is(nodeToken(undefined, {}), undefined);
  writeFileSync(path, "two s3cret words\n");
  for (const line of [
    refusal(() => nodeToken(path, {})),
    refusal(() => nodeToken(undefined, { NARTHEX_TOKEN: "s3cret\nX-Evil: 1" })),
  ]) {
    assert.match(line, "does not hold a token");
    assert.not.match(line, "s3cret");
  }
  assert.match(
    refusal(() => nodeToken(join(folder.path, "nowhere"), {})),
    /--token-file .*ENOENT/,
  );
  folder.remove();
});

test("colours are for terminals that want them", () => {
  assert.is(wantsColor(true, {}), true);
  assert.is(wantsColor(true, { NO_COLOR: "" }), true);
  assert.is(wantsColor(true, { NO_COLOR: "1" }), false);
  assert.is(wantsColor(true, { TERM: "dumb" }), false);
  assert.is(wantsColor(undefined, {}), false);
});

test("every command shows an example and the options that all share", () => {
  const program = makeProgram(() => Promise.resolve(), "1.2.3");
  const commands = program.commands.flatMap((command) => [command, ...command.commands]);
  assert.ok(commands.length > 10);
  for (const command of commands) {
    if (command.name() === "start" || command.name() === "help") continue;
    let text = "";
    command.configureOutput({
      writeOut: (part) => {
        text += part;
      },
    });
    command.outputHelp();
    assert.match(text, /Examples?:\n {2}.*narthex /, command.name());
    assert.match(text, "--json", command.name());
    assert.match(text, "--url", command.name());
    assert.match(text, "--token-file", command.name());
    assert.not.match(text, /--token\b(?!-file)/, command.name());
  }
});

test.run();
