// The node is killed under load, again and again. And a set of three under load while its primary is killed, steps down, or stands still: what the node has confirmed is there once, in
// order, and a group gets all of it. At least two members are there at any time, so the node has to go on by itself.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { connect } from "../../src/client/client.ts";
import { clientCrash } from "../conformance/client-crash.ts";
import { eventually } from "../support/deadline.ts";
import { type Mongod, startMongod, withMongod } from "../support/mongod.ts";
import { startHere } from "../support/node-here.ts";
import { startNode } from "../support/node-process.ts";

const atATime = 40;
/** Where much else goes on, an election takes its time. */
const patienceMs = 60_000;

/** What ends the primary, and what brings it back. */
const faults: [name: string, strike: (mongod: Mongod) => Promise<() => Promise<void>>][] = [
  [
    "kill -9",
    async (mongod) => {
      const primary = await mongod.primary();
      await primary.kill("SIGKILL");
      return () => primary.restart();
    },
  ],
  [
    "a step-down",
    async (mongod) => {
      const primary = await mongod.primary();
      const client = await mongod.connect(primary);
      await client.db("admin").command({ replSetStepDown: 5, secondaryCatchUpPeriodSecs: 5, force: true });
      return async () => undefined;
    },
  ],
  [
    "standing still",
    async (mongod) => {
      const primary = await mongod.primary();
      await primary.kill("SIGSTOP");
      return () => primary.kill("SIGCONT");
    },
  ],
];

await withMongod("mongo failover", async () => {
  const one = await startMongod();
  const url = one.url();

  clientCrash({
    kills: 3,
    start: (env) => startNode({ data: "/nowhere", env: { STORE: "mongo", MONGO_URL: url, ...env } }),
    end: async () => undefined,
  });

  test.after(() => one.stop());

  test("what was confirmed is there once and in order, whatever happens to the primary", async () => {
    const mongod = await startMongod({ members: 3 });
    const mongoUrl = `${mongod.url()}&serverSelectionTimeoutMS=2000&socketTimeoutMS=3000`;
    const { node, http, ws } = await startHere({ store: "mongo", mongoUrl, workers: 2 });
    const client = await connect(ws);
    try {
      const confirmed = new Map<number, { id: string; offset: number }>();
      const handled = new Set<number>();
      let next = 0;
      let going = true;
      await client.subscribe("load", "all", (event) => void handled.add((event.payload as { n: number }).n), {
        from: "earliest",
      });
      const publisher = async () => {
        while (going) {
          const n = next++;
          const { id, offset } = await client.publish(
            "load",
            { n, pad: "x".repeat(200) },
            { key: "one", timeoutMs: patienceMs },
          );
          confirmed.set(n, { id, offset });
        }
      };
      const load = Promise.all(Array.from({ length: atATime }, publisher));
      await eventually(10_000, "the load runs", () => confirmed.size > 200);
      for (const [name, strike] of faults) {
        const heal = await strike(mongod);
        const before = confirmed.size;
        await eventually(patienceMs, `publishing goes on after ${name}`, () => confirmed.size > before + 200);
        await heal();
      }
      going = false;
      await load;
      await eventually(patienceMs, "the group has had everything", () => handled.size === next);
      await eventually(10_000, "ready", async () => (await fetch(`${http}/health/ready`)).status === 200);
      const lines = (await (await fetch(`${http}/export?topic=load`)).text()).split("\n").filter(Boolean);
      const events = lines.map((line) => JSON.parse(line) as { id: string; offset: number; payload: { n: number } });
      assert.equal(
        events.map(({ payload }) => payload.n),
        Array.from({ length: next }, (_, n) => n),
        "each once, in the order of the calls",
      );
      for (const { id, offset, payload } of events) assert.equal(confirmed.get(payload.n), { id, offset });
      const { damage = [] } = (await (await fetch(`${http}/health/ready`)).json()) as { damage?: unknown[] };
      assert.equal(damage, []);
      console.log(`measured: failover of three members: ${next} events over ${faults.length} faults of the primary`);
    } finally {
      client.destroy();
      await node.destroy();
      await mongod.stop();
    }
  });
});

test.run();
