// The promises of a bus, kept by the client over a real socket.

import { connect } from "../../src/client/client.ts";
import { busConformance } from "../conformance/bus.ts";
import { httpTopics } from "../support/http-topics.ts";
import { startHere } from "../support/node-here.ts";

busConformance("a client over a socket", {
  durability: "memory",
  async start() {
    const { node, ws, http } = await startHere({ store: "memory" });
    return { open: () => connect(ws), ...httpTopics(http), close: () => node.close() };
  },
});
