// Where a node listens, in a file of its own: a program that uses the node as a library sees this type, and should not need those of
// the sockets behind it.

export interface Listening {
  /** The setting that asked for it. */
  readonly setting: "WS_PORT" | "HTTP_PORT" | "OPS_PORT" | "REPLAY_PORT";
  readonly host: string;
  readonly port: number;
}
