// The way to a node, below frames: a socket of `ws` in Node, of the browser in a page, or none at all in the node's own process.

export interface Wire {
  send(frame: string | Uint8Array): void;
  /** Ends it; `closed` follows, unless it was said before. */
  close(): void;
  /** Bytes handed over that have not left yet. */
  readonly unsent: number;
}

export interface WireEvents {
  opened(): void;
  text(frame: string): void;
  /** The bytes are the receiver's to keep. */
  binary(frame: Uint8Array): void;
  /** Once, also where it never opened. `reason` says why in words, where anybody knows. */
  closed(code: number, reason: string): void;
}

export type Dial = (url: string, events: WireEvents) => Wire;
