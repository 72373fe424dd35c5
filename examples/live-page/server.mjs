// A page that follows a topic live. Run it: node examples/live-page/server.mjs, then open the address that it prints. It serves the
// page and the client's build for browsers, starts a node that this page may connect to, and publishes a heartbeat every second.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import { createNode } from "narthex";

const page = readFileSync(new URL("index.html", import.meta.url));
const client = readFileSync(fileURLToPath(import.meta.resolve("narthex").replace(/narthex\.js$/, "client.browser.js")));

const server = createServer((req, res) => {
  const path = new URL(req.url, "http://page").pathname;
  if (path === "/") res.setHeader("content-type", "text/html; charset=utf-8").end(page);
  else if (path === "/client.js") res.setHeader("content-type", "text/javascript").end(client);
  else res.writeHead(404).end();
});
await new Promise((resolve) => server.listen(Number(process.env.PORT ?? 8080), "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${server.address().port}`;

const node = await createNode({
  store: "memory",
  wsPort: 0,
  httpPort: "off",
  opsPort: "off",
  replayPort: "off",
  origins: [origin],
});
console.log(`open ${origin}/?node=ws://127.0.0.1:${node.listening[0].port}`);

let n = 0;
const beat = setInterval(() => {
  node.bus.publish("heartbeats", { n: n++ }, { key: "host-1" }).catch((error) => console.error(error.message));
}, 1000);

process.on("SIGTERM", async () => {
  clearInterval(beat);
  server.close();
  server.closeAllConnections();
  await node.close();
});
