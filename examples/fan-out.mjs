// Fan-out: three groups each get every order, each at its own pace, and the event is stored once.
// Run it: node examples/fan-out.mjs (it starts a node of its own, in memory, and talks to it without a socket).

import { createNode } from "narthex";

const node = await createNode({ store: "memory", listen: false });
const { bus } = node;

const seen = { billing: [], shipping: [], analytics: [] };
for (const [group, got] of Object.entries(seen)) {
  await bus.subscribe("orders", group, (event) => void got.push(event.payload.n), { from: "earliest" });
}
await bus.publishMany(
  "orders",
  [1, 2, 3].map((n) => ({ payload: { n }, options: { key: `customer-${n}` } })),
);

for (const group of Object.keys(seen)) {
  while ((await bus.getCursor("orders", group)).lag > 0) await new Promise((resolve) => setTimeout(resolve, 10));
  console.log(`${group} got ${seen[group].join(", ")}`);
}
await node.close();
