// narthex doctor: one line for each thing that a node needs, here and at NARTHEX_URL, with what to do where something is wrong.

import { realClock } from "../runtime/clock.ts";
import { type Context, exitCodes, type Register } from "./context.ts";
import {
  checkClock,
  checkFolder,
  checkNodeVersion,
  checkOpenFiles,
  checkOwnVersion,
  checkPorts,
  checkRates,
  checkSync,
  checkToken,
  readLimits,
  readSettings,
} from "./doctor-local.ts";
import { checkMongo } from "./doctor-mongo.ts";
import { checkRemote } from "./doctor-remote.ts";
import { oneLine } from "./failures.ts";
import { type Finding, fail, type Status } from "./finding.ts";
import { painter } from "./paint.ts";

interface DoctorOptions {
  readonly data?: string;
}

const dataDefault = "./narthex-data";
const localUrl = "http://127.0.0.1:8090";

export const registerDoctor: Register = (program, run) => {
  program
    .command("doctor")
    .summary("find out what is wrong, here and at the node")
    .description(
      "Check what a node needs on this machine (version, settings, folder and disk, or with STORE=mongo the database at MONGO_URL, limits, ports, clock) and how the node at NARTHEX_URL is. Ends with 1 if something fails.",
    )
    .option("--data <folder>", "in place of NARTHEX_DATA")
    .addHelpText(
      "after",
      `
Example:
  $ narthex doctor
  ok    node: v22.11.0
  ok    fsync: write and fdatasync of 4 KiB in /srv/narthex-data: p50 0.41 ms, p99 1.20 ms
  FAIL  port 8090: taken by another program: end it, or set WS_PORT to a free port`,
    )
    .action((options: DoctorOptions) => run((context) => doctor(context, options)));
};

async function doctor(context: Context, options: DoctorOptions): Promise<number> {
  const clock = realClock();
  const settings = readSettings(process.env);
  const config = "status" in settings ? undefined : settings;
  const data = options.data ?? config?.dataPath ?? process.env.NARTHEX_DATA ?? dataDefault;
  const found: Finding[] = [];
  const show = (findings: readonly Finding[]) => {
    found.push(...findings);
    if (!context.json) for (const finding of findings) context.out(lineOf(context, finding));
  };
  show([checkNodeVersion(process.version), await checkOwnVersion()]);
  show("status" in settings ? [settings] : [checkToken(settings), checkRates(settings)]);
  if (config?.store === "mongo") {
    const { mongoUrl = "" } = config;
    show(await attempt("mongo", () => checkMongo(mongoUrl)));
  } else {
    show(await attempt("data", () => checkFolder(data)));
    show(await attempt("fsync", async () => [await checkSync(data, clock)]));
  }
  show(await attempt("open files", async () => [checkOpenFiles(await readLimits())]));
  if (config !== undefined) show(await checkPorts(config));
  show([await checkClock(clock)]);
  show(await checkRemote(context, clock, context.url !== localUrl));
  if (context.json) context.out(JSON.stringify(found));
  return found.some(({ status }) => status === "FAIL") ? exitCodes.failed : exitCodes.ok;
}

/** What cannot even be looked at is wrong, too. */
async function attempt(check: string, look: () => Promise<readonly Finding[]>): Promise<readonly Finding[]> {
  try {
    return await look();
  } catch (error) {
    return [fail(check, `cannot be looked at: ${oneLine((error as Error).message)}`)];
  }
}

const styles = { ok: "green", warn: "yellow", FAIL: "red" } as const satisfies Record<Status, string>;

function lineOf(context: Context, { status, check, text }: Finding): string {
  return `${painter(context)(styles[status], status.padEnd(4))}  ${check}: ${oneLine(text)}`;
}
