// Connections that are open, let in and idle: what the node holds for each. Client processes of 5,000 connections each hold the other ends. Nothing
// of the system is raised; if there are fewer than SOCKETS, it says what stands in the way.

import { readFileSync } from "node:fs";
import { Child } from "./support/child.ts";
import type { IdleAnswer, IdleAsk } from "./support/idle-client.entry.ts";
import { print, printGoal, resultOf, resultTable } from "./support/report.ts";
import { numberFrom, settings } from "./support/settings.ts";
import { perOne, startStanding } from "./support/stand.ts";

const perProcess = 5000;
/** Files, worker threads and the like: descriptors of a node that are no clients. */
const otherDescriptors = 200;
/** The first ones make a node ready: what they bring is there once. */
const firstShare = 0.05;

const set = settings({ n: 0 });
const wanted = numberFrom("SOCKETS", 10_000);
const standing = await startStanding(set);
const { system } = standing;
const descriptors = Number(/^Max open files +(\d+)/m.exec(readFileSync(`/proc/${system.pid}/limits`, "utf8"))?.[1]);
const possible = Math.min(wanted, descriptors - otherDescriptors);
if (possible < wanted) console.log(`no more than ${possible} of ${wanted} connections: ulimit -n is ${descriptors}`);

const children: Child<IdleAsk, IdleAnswer>[] = [];
let opened = 0;
await openUpTo(Math.ceil(possible * firstShare));
const first = opened;
const before = await standing.look();
const started = performance.now();
await openUpTo(possible);
const ms = performance.now() - started;
const after = await standing.look();
const each = perOne(before, after, opened - first);
await Promise.all(children.map((child) => child.end()));
await standing.stop();

const result = resultOf("sockets", system, set, 0, { ms, used: {} }, undefined, {
  variant: `idle connections ${opened}`,
  connections: opened,
  client_processes: children.length,
  ...each,
});
print(result);
console.log(resultTable([result], ["connections", "client_processes", "resident_bytes_each", "held_bytes_each"]));
printGoal("resident bytes of the node for each idle connection", each.resident_bytes_each, {
  is: "<",
  bound: 12_000,
  unit: " B",
});

async function openUpTo(count: number): Promise<void> {
  while (opened < count) {
    const inLast = opened % perProcess;
    if (inLast === 0) children.push(new Child("support-idle-client.entry"));
    const more = Math.min(count - opened, perProcess - inLast);
    const answer = await children[children.length - 1].ask({ url: system.wsUrl, count: more });
    opened += answer.opened;
    if (answer.limit !== undefined) {
      console.log(`no more than ${opened} of ${wanted} connections: ${answer.limit}`);
      return;
    }
  }
}
