// What `import "narthex"` gives: the node in your own process.

export type { Overrides as NodeOptions } from "./config.ts";
export type { AuthFn, AuthResult, Rights } from "./front/auth.ts";
export { createNode, type RunningNode } from "./node.ts";
