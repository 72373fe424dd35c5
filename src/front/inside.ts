// A connection without a network: the way into the node from its own process. For the session it is a socket like any other; at its
// other end is a wire that whoever called holds. No frame is encoded, masked or copied on the way.
//
// Neither side is ever called from within a call of its own: what is sent arrives in its order once the turn of the event loop is
// over, as it would over a socket. What the node sends is taken whole at that moment; what is sent to the node waits here while the
// session does not read, and is counted as `unsent`. Strings count by their characters.

import type { Clock } from "../runtime/clock.ts";
import { faultFields, type Logger } from "../runtime/log.ts";
import { allRights } from "./auth.ts";
import { Budgets } from "./budget.ts";
import type { Hall } from "./hall.ts";
import type { Peer, Pipe } from "./outlet.ts";

/** The caller's end. */
export interface InsideWire {
  /** The bytes must not change afterwards. */
  send(frame: string | Uint8Array): void;
  /** Ends it. What was sent before is handled; `closed` follows. */
  close(): void;
  readonly unsent: number;
}

export interface InsideEvents {
  opened(): void;
  text(frame: string): void;
  /** The bytes are the receiver's to keep: nobody writes to them again. */
  binary(frame: Uint8Array): void;
  /** Once, also where it never opened. */
  closed(code: number, reason: string): void;
}

export interface InsideOptions {
  readonly clock: Clock;
  readonly log: Logger;
  readonly events: InsideEvents;
  /** For the session. */
  readonly onFrame: (frame: string | Uint8Array, bytes: number) => void;
  /** It is over; called once, before `closed`. */
  readonly onClosed: () => void;
}

interface Sent {
  readonly frame: string | Uint8Array;
  readonly taken: () => void;
}

const normalCode = 1000;
const brokenCode = 1006;
const faultCode = 1011;
const openState = 1;
const closingState = 2;

/** The node's end, and in `wire` the caller's. */
export class InsidePeer implements Peer, Pipe {
  readonly OPEN = openState;
  readyState = openState;
  bufferedAmount = 0;
  readonly wire: InsideWire;
  /** Resolves when it is over. */
  readonly closed: Promise<void>;
  private readonly options: InsideOptions;
  private status: "opening" | "open" | "closed" = "opening";
  private toCaller: Sent[] = [];
  private toNode: (string | Uint8Array)[] = [];
  private unsent = 0;
  private paused = false;
  private scheduled = false;
  private ending: { readonly code: number; readonly reason: string; readonly by: "node" | "caller" } | undefined;
  private over: () => void = () => undefined;

  constructor(options: InsideOptions) {
    this.options = options;
    this.closed = new Promise((resolve) => {
      this.over = resolve;
    });
    const unsent = () => this.unsent;
    this.wire = {
      send: (frame) => this.take(frame),
      close: () => this.end(normalCode, "", "caller"),
      get unsent() {
        return unsent();
      },
    };
    this.schedule();
  }

  // -------------------------------------------------------------------------------------------------------- the node's side

  send(frame: string | Uint8Array, _options: unknown, taken: () => void): void {
    if (this.readyState !== openState) return;
    this.bufferedAmount += frame.length;
    this.toCaller.push({ frame, taken });
  }

  close(code: number, reason: string): void {
    this.end(code, reason, "node");
  }

  /** What has not arrived yet is lost, in both directions. */
  terminate(): void {
    this.toCaller = [];
    this.toNode = [];
    this.end(brokenCode, "the node ended the connection", "node");
  }

  pause(): void {
    this.paused = true;
  }

  resume(): void {
    this.paused = false;
    if (this.toNode.length > 0) this.schedule();
  }

  /** There is nobody who could be gone unnoticed. */
  ping(): void {
    return;
  }

  cork(): void {
    return;
  }

  /** The turn is over: what was sent in it arrives. */
  uncork(): void {
    this.deliver();
  }

  // ------------------------------------------------------------------------------------------------------ the caller's side

  private take(frame: string | Uint8Array): void {
    if (this.ending !== undefined) return;
    this.unsent += frame.length;
    this.toNode.push(frame);
    if (!this.paused) this.schedule();
  }

  // ------------------------------------------------------------------------------------------------------------ in between

  private schedule(): void {
    if (this.scheduled || this.status === "closed") return;
    this.scheduled = true;
    this.options.clock.soon(() => {
      this.scheduled = false;
      this.turn();
    });
  }

  private turn(): void {
    if (this.status === "opening" && this.ending === undefined) {
      this.status = "open";
      this.guard(() => this.options.events.opened());
    }
    this.hand();
    if (this.ending !== undefined) this.finish(this.ending);
  }

  /** To the session, while it reads. A caller that has closed sees nothing more of it, so the rest is handed over at once. */
  private hand(): void {
    const frames = this.toNode;
    let at = 0;
    while (at < frames.length && this.toNode === frames && (!this.paused || this.ending?.by === "caller")) {
      const frame = frames[at++];
      this.unsent -= frame.length;
      this.options.onFrame(frame, frame.length);
    }
    if (this.toNode === frames) this.toNode = at === frames.length ? [] : frames.slice(at);
  }

  private deliver(): void {
    const sent = this.toCaller;
    this.toCaller = [];
    const { events } = this.options;
    for (const { frame, taken } of sent) {
      // The caller, or the node by what the caller just did, has ended it in the meantime.
      if (this.status === "closed" || this.ending?.by === "caller") return;
      this.bufferedAmount -= frame.length;
      this.guard(() => (typeof frame === "string" ? events.text(frame) : events.binary(frame)));
      taken();
    }
  }

  /** A fault of the caller must not reach those who share this turn with it. */
  private guard(run: () => void): void {
    try {
      run();
    } catch (error) {
      this.options.log.error("a frame was not taken inside the process", faultFields(error));
      this.end(faultCode, "a frame could not be taken", "node");
    }
  }

  private end(code: number, reason: string, by: "node" | "caller"): void {
    if (this.ending !== undefined) return;
    this.ending = { code, reason, by };
    this.readyState = closingState;
    this.schedule();
  }

  private finish({ code, reason }: { readonly code: number; readonly reason: string }): void {
    this.deliver();
    this.status = "closed";
    this.toNode = [];
    this.toCaller = [];
    this.unsent = 0;
    this.bufferedAmount = 0;
    this.options.onClosed();
    this.guard(() => this.options.events.closed(code, reason));
    this.over();
  }
}

/** What a session inside sees of the node: everybody's, but all rights without a token, and no CONN_RATE. TOPIC_RATE holds. */
export function insideHall(hall: Hall): Hall {
  const config = { ...hall.config, connRate: "off" as const };
  const budgets = new Budgets({ system: hall.system, clock: hall.clock, config });
  return {
    ...hall,
    config,
    auth: async () => ({ ok: true, rights: allRights }),
    budgets: {
      connection: (name) => budgets.connection(name),
      topic: (route) => hall.budgets.topic(route),
    },
  };
}
