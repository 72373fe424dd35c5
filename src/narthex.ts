// What `import "narthex"` gives: the node in your own process, and what its bus speaks of.

export type * from "./bus/event-bus.ts";
export * from "./client/errors.ts";
export type { AuthFn, AuthResult, Rights } from "./front/auth.ts";
export { createNode, type NodeOptions, type RunningNode } from "./node.ts";
