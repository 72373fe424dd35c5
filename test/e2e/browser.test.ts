// That a page can be opened at all, here. What the client does in a page is tested elsewhere, with the same support.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { browserTest, findChromium, openBrowser, servePages, withoutChromium } from "../support/browser.ts";

test("Chromium is looked for in CHROMIUM, then on PATH under its three names", () => {
  const folder = mkdtempSync(join(tmpdir(), "narthex-chromium-"));
  const program = join(folder, "google-chrome");
  assert.is(findChromium({ PATH: folder }), undefined);
  writeFileSync(program, "");
  assert.is(findChromium({ PATH: folder }), undefined, "a file that nobody can run");
  rmSync(program);
  writeFileSync(program, "", { mode: 0o755 });
  assert.is(findChromium({ PATH: `/nowhere:${folder}` }), program);
  assert.is(findChromium({ CHROMIUM: program, PATH: "" }), program);
  assert.is(findChromium({ CHROMIUM: "other", PATH: folder }), undefined, "the one that was asked for, or none");
  rmSync(folder, { recursive: true });
});

test("a missing browser is a failure where it was promised", () => {
  assert.is(withoutChromium({}), "skip");
  assert.is(withoutChromium({ CI: "" }), "skip");
  assert.is(withoutChromium({ CI: "1" }), "fail");
  assert.is(withoutChromium({ CI: "true" }), "fail");
  assert.is(withoutChromium({ NARTHEX_REQUIRE_BROWSER: "1" }), "fail");
  assert.is(withoutChromium({ NARTHEX_REQUIRE_BROWSER: "0" }), "skip");
});

browserTest("a page is opened, runs its module and tells what it throws", async () => {
  const pages = await servePages({
    "/": '<!doctype html><title>plain</title><link rel="icon" href="data:,"><script type="module" src="/page.js"></script>',
    "/page.js": 'document.title = `${location.origin} ${typeof WebSocket}`; throw new Error("on purpose");',
  });
  const browser = await openBrowser();
  try {
    const tab = await browser.open(`${pages.origin}/`);
    const title = await tab.eventually("the module has run", 'document.title !== "plain" && document.title');
    assert.is(title, `${pages.origin} function`);
    assert.equal(tab.faults, ["on purpose"]);
    const failed = await tab.eventually("what never comes", "false", 100).catch((error: Error) => error.message);
    assert.is(failed, "not within 100 ms: what never comes; faults of the page: on purpose");
    await tab.close();
  } finally {
    await browser.close();
    await pages.close();
  }
});

test.run();
