import { test } from "uvu";
import { clientCrash } from "../conformance/client-crash.ts";
import { dataFolder, startNode } from "../support/node-process.ts";

const data = dataFolder();

clientCrash({
  kills: 10,
  start: (env) => startNode({ data: data.path, env }),
  end: async () => data.remove(),
});

test.run();
