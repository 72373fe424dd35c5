// npm run crash -- --rounds N --seed S [--workers-max 3] [--minutes M] [--store log|mongo]: kills a node under load N times, starts it again, and compares
// what it recovered with the journal of what it had confirmed. The seed decides what is done and about when; the moments of real
// processes are not the same twice.

import { parseArgs } from "node:util";
import { startMongod } from "../support/mongod.ts";
import { logEnvironment } from "./environment.ts";
import { mongoEnvironment } from "./mongo-environment.ts";
import { crashRun } from "./run.ts";
import { runSmallNode } from "./small-node.ts";

if (process.env.CRASH_NODE === undefined) await main();
// The same program is the node that it kills, where that has small limits: only one program is built for a long run.
else await runSmallNode();

async function main(): Promise<void> {
  // The first one ends the run after the round under way, with what was counted.
  let signals = 0;
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.on(signal, () => {
      if (signals++ > 0) process.exit(1);
    });
  }
  const { values } = parseArgs({
    options: {
      rounds: { type: "string", default: "100" },
      seed: { type: "string", default: String(Date.now() % 1_000_000) },
      "workers-max": { type: "string", default: "3" },
      minutes: { type: "string" },
      store: { type: "string", default: "log" },
    },
  });

  const mongod = values.store === "mongo" ? await startMongod() : undefined;
  const seed = Number(values.seed);
  const outcome = await crashRun({
    rounds: Number(values.rounds),
    seed,
    workersMax: Number(values["workers-max"]),
    environment: mongod === undefined ? logEnvironment() : mongoEnvironment(mongod),
    ...(values.minutes === undefined ? {} : { minutes: Number(values.minutes) }),
    stopped: () => signals > 0,
    say: console.log,
  });
  await mongod?.stop();
  for (const [name, count] of outcome.table) console.log(`${String(count).padStart(10)}  ${name}`);
  const { violation, rounds, seconds } = outcome;
  if (violation !== undefined) {
    console.log(`\n${violation.story}\n`);
    console.log(`violation: ${violation.what}`);
    console.log(`seed ${seed}, round ${violation.round}, after ${rounds} kills; the data is kept in ${violation.kept}`);
    process.exitCode = 1;
  } else
    console.log(
      `${rounds} rounds of SIGKILL from seed ${seed}: nothing lost, nothing doubled, ${seconds.toFixed(0)} s`,
    );
}
