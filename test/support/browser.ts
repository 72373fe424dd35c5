// A real Chromium for tests of pages, driven by playwright-core, and an HTTP server that gives the pages an origin. A node that such
// a page talks to is started with ORIGINS set to that origin.
//
// Where there is no Chromium the tests that need one are skipped, and say so. With CI or NARTHEX_REQUIRE_BROWSER set they fail.

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { isAbsolute } from "node:path";
import { chromium, type Page } from "playwright-core";
import { test } from "uvu";
import { within } from "./deadline.ts";
import { isProgram, onPath } from "./programs.ts";

const names = ["chromium", "chromium-browser", "google-chrome"];
const openMs = 30_000;
const stepMs = 15_000;
const closeMs = 10_000;
const contentTypes: Readonly<Record<string, string>> = {
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  map: "application/json",
};

export function findChromium(env: NodeJS.ProcessEnv = process.env): string | undefined {
  const wanted = env.CHROMIUM === undefined ? names : [env.CHROMIUM];
  const paths = wanted.flatMap((name) => (isAbsolute(name) ? [name] : onPath(name, env)));
  return paths.find(isProgram);
}

/** What a missing Chromium means for a test: nothing to run, or a failure. */
export function withoutChromium(env: NodeJS.ProcessEnv = process.env): "skip" | "fail" {
  const isSet = (value: string | undefined) => value !== undefined && !["", "0", "false"].includes(value);
  return isSet(env.CI) || isSet(env.NARTHEX_REQUIRE_BROWSER) ? "fail" : "skip";
}

/** A test that needs a browser. */
export function browserTest(name: string, run: () => Promise<void>): void {
  if (findChromium() !== undefined) return void test(name, run);
  const reason = `no Chromium on PATH (${names.join(", ")}) or in CHROMIUM`;
  if (withoutChromium() === "fail") {
    return void test(name, () => {
      throw new Error(reason);
    });
  }
  console.log(`skipped: ${name}: ${reason}`);
  test.skip(name, run);
}

export interface Browser {
  /** A tab, opened at the address. What the page throws, and what it says with console.error, is kept in `faults`. */
  open(url: string): Promise<Tab>;
  close(): Promise<void>;
}

export interface Tab {
  readonly page: Page;
  readonly faults: readonly string[];
  /**
   * Looks at `expression` in the page until it is something true, and gives that back. It is text, because a function would
   * arrive there as the build of the tests left it.
   */
  eventually<T>(what: string, expression: string, ms?: number): Promise<T>;
  close(): Promise<void>;
}

export async function openBrowser(): Promise<Browser> {
  const executablePath = findChromium();
  if (executablePath === undefined) throw new Error("no Chromium: use browserTest");
  // No sandbox: as root, and in most containers, Chromium does not start with one. These pages are our own.
  const args = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"];
  const browser = await within(
    openMs,
    "Chromium starts",
    chromium.launch({ executablePath, args, headless: true, timeout: openMs }),
  );
  // One profile, so that the tabs are those of one person.
  const context = await browser.newContext();
  context.setDefaultTimeout(stepMs);
  return {
    async open(url) {
      const page = await within(stepMs, "a tab opens", context.newPage());
      const faults: string[] = [];
      page.on("pageerror", (error) => void faults.push(error.message));
      page.on("console", (message) => {
        if (message.type() === "error") faults.push(message.text());
      });
      await page.goto(url, { timeout: stepMs });
      return {
        page,
        faults,
        async eventually<T>(what: string, expression: string, ms = stepMs): Promise<T> {
          const found = await page
            .waitForFunction(expression, undefined, { timeout: ms, polling: 20 })
            .catch((error) => {
              throw new Error(`not within ${ms} ms: ${what}; faults of the page: ${faults.join(" | ") || "none"}`, {
                cause: error,
              });
            });
          return (await found.jsonValue()) as T;
        },
        close: () => within(closeMs, "a tab closes", page.close()),
      };
    },
    close: () => within(closeMs, "Chromium ends", browser.close()),
  };
}

export interface Pages {
  readonly origin: string;
  close(): Promise<void>;
}

/** Serves what is in `files`, by path ("/", "/client.js"), on a loopback port of its own. */
export async function servePages(files: Readonly<Record<string, string | Uint8Array>>): Promise<Pages> {
  const server = createServer((req, res) => {
    const path = new URL(req.url ?? "/", "http://pages").pathname;
    const body = Object.hasOwn(files, path) ? files[path] : undefined;
    if (body === undefined) return void res.writeHead(404).end();
    const extension = path.endsWith("/") ? "html" : path.slice(path.lastIndexOf(".") + 1);
    const type = contentTypes[extension] ?? "application/octet-stream";
    res.writeHead(200, { "content-type": type, "cache-control": "no-store" }).end(body);
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, "127.0.0.1", resolve);
  });
  const { port } = server.address() as AddressInfo;
  return {
    origin: `http://127.0.0.1:${port}`,
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
