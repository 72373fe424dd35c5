// The promises of a bus, kept by `node.bus` without a socket.

import { embed, openBus } from "../../src/node.ts";
import { busConformance, type OwnBus } from "../conformance/bus.ts";
import { httpTopics } from "../support/http-topics.ts";
import { startHere } from "../support/node-here.ts";
import { dataFolder } from "../support/node-process.ts";

for (const store of ["memory", "log"] as const) {
  busConformance(`node.bus on the ${store} store`, {
    durability: store === "log" ? "fsync" : "memory",
    async start() {
      const data = dataFolder();
      const { node, http } = await startHere({ store, dataPath: data.path });
      const running = await embed(node);
      // The first one is the node's own: a client as well, though its type does not say so.
      const buses = [running.bus as OwnBus];
      return {
        open: async () => buses.pop() ?? openBus(node),
        ...httpTopics(http),
        close: async () => {
          await running.close();
          data.remove();
        },
      };
    },
  });
}
