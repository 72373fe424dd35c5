// A node inside the test's own process, on one free port, without rate limits: for tests that look or reach inside.

import { defaultConfig, type Overrides } from "../../src/config.ts";
import { type NodeParts, type OpenNode, startNode } from "../../src/node.ts";

export interface NodeHere {
  readonly node: OpenNode;
  readonly http: string;
  readonly ws: string;
}

export async function startHere(overrides: Overrides, parts: NodeParts = {}): Promise<NodeHere> {
  const config = defaultConfig({
    wsPort: 0,
    httpPort: "off",
    opsPort: "off",
    replayPort: "off",
    connRate: "off",
    topicRate: "off",
    logLevel: "silent",
    ...overrides,
  });
  const node = await startNode(config, parts);
  const address = `127.0.0.1:${node.listening[0].port}`;
  return { node, http: `http://${address}`, ws: `ws://${address}` };
}
