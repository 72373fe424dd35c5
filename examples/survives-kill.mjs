// A request that survives kill -9 of the node: the program publishes while the node is killed and started again, and needs no code
// for it. Run it: node examples/survives-kill.mjs (it starts a node of its own on a folder of its own).

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { connect } from "narthex/client";

const data = mkdtempSync(join(tmpdir(), "narthex-example-"));
const program = fileURLToPath(import.meta.resolve("narthex").replace(/narthex\.js$/, "main.js"));

function startNode(port) {
  const flags = ["--ws-port", port, "--http-port", "off", "--ops-port", "off", "--replay-port", "off"];
  const node = spawn(process.execPath, [program, ...flags, "--narthex-data", data], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  return new Promise((resolve) => {
    let text = "";
    node.stdout.on("data", (chunk) => {
      text += chunk;
      const match = /narthex ws +http:\/\/127\.0\.0\.1:(\d+).*narthex ready/s.exec(text);
      if (match) resolve({ node, port: match[1] });
    });
  });
}

let { node, port } = await startNode("0");
const client = await connect(`ws://127.0.0.1:${port}`);
console.log(`stored at offset ${(await client.publish("orders", { n: 1 }, { key: "customer-7" })).offset}`);

node.kill("SIGKILL");
await new Promise((resolve) => node.on("exit", resolve));
console.log("the node was killed");

const request = client.publish("orders", { n: 2 }, { key: "customer-7" });
({ node } = await startNode(port));
console.log("the node is back");
console.log(`stored at offset ${(await request).offset}`);

const orders = await client.subscribe("orders", "billing", { from: "earliest" });
let left = 2;
for await (const { event } of orders) {
  console.log(`billing got order ${event.payload.n}`);
  if (--left === 0) break;
}
await client.close();
node.kill("SIGTERM");
await new Promise((resolve) => node.on("exit", resolve));
rmSync(data, { recursive: true });
