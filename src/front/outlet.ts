// The sending side of one connection: answers and events on their way to the socket, how many bytes it has not taken yet, and
// whether it still takes any. Nothing here copies an event: frames are slices of the buffer that came from the worker.

import type { Clock } from "../runtime/clock.ts";

/** What is used of a WebSocket. A socket of `ws` is one as it is; inside.ts has one without a network. */
export interface Peer {
  readonly OPEN: number;
  readonly readyState: number;
  /** Bytes that were sent and not taken yet. */
  readonly bufferedAmount: number;
  /** The bytes are the peer's: they may be handed on without a copy. `taken` is called once the frame has left. */
  send(
    frame: string | Uint8Array,
    options: { readonly binary: boolean; readonly compress: boolean },
    taken: (error?: Error | null) => void,
  ): void;
  close(code: number, reason: string): void;
  terminate(): void;
  /** Hands on no frame until `resume`. */
  pause(): void;
  resume(): void;
  ping(): void;
}

/** What is used of the connection below: between the two calls everything is gathered. */
export interface Pipe {
  cork(): void;
  uncork(): void;
}

/** Those that were written to in this turn of the event loop: each sends what it got in one go when the turn ends. */
export class Corks {
  private readonly clock: Clock;
  private corked = new Set<Outlet>();

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /** False: it is corked already. */
  add(outlet: Outlet): boolean {
    if (this.corked.has(outlet)) return false;
    if (this.corked.size === 0) this.clock.soon(() => this.uncork());
    this.corked.add(outlet);
    return true;
  }

  private uncork(): void {
    const outlets = this.corked;
    this.corked = new Set();
    for (const outlet of outlets) outlet.uncork();
  }
}

export interface OutletOptions {
  readonly peer: Peer;
  readonly pipe: Pipe;
  readonly corks: Corks;
  readonly unsentBytesMax: number;
  /** Too much is unsent (true), or it was taken again (false). */
  readonly onFull: (full: boolean) => void;
  readonly onSent: (frames: number) => void;
}

const text = { binary: false, compress: false } as const;
const binary = { binary: true, compress: false } as const;

export class Outlet {
  private readonly options: OutletOptions;
  /** Set while more is unsent than may be. */
  full = false;
  private writes = 0;
  private seenWrites = 0;
  private seenQueue = 0;
  private stalledFrom: number | undefined;

  constructor(options: OutletOptions) {
    this.options = options;
  }

  /** Bytes handed over that the kernel has not taken. */
  get unsent(): number {
    return this.options.peer.bufferedAmount;
  }

  send(frame: string | Uint8Array): void {
    const { peer, onSent } = this.options;
    if (peer.readyState !== peer.OPEN) return;
    this.cork();
    peer.send(frame, typeof frame === "string" ? text : binary, this.taken);
    onSent(1);
  }

  /** Frames joined in one buffer, each ending at an entry of `ends`; `written` is called once the last of them left. */
  frames(joined: Uint8Array, ends: Uint32Array, isBinary: boolean, written: () => void): void {
    const { peer, onSent } = this.options;
    if (peer.readyState !== peer.OPEN) return;
    this.cork();
    const kind = isBinary ? binary : text;
    let from = 0;
    const last = ends.length - 1;
    for (let i = 0; i < last; i++) {
      peer.send(joined.subarray(from, ends[i]), kind, this.taken);
      from = ends[i];
    }
    peer.send(joined.subarray(from, ends[last]), kind, (error) => {
      this.taken(error);
      if (!error) written();
    });
    onSent(ends.length);
  }

  /** The turn is over: what the kernel does not take now is unsent. */
  uncork(): void {
    this.options.pipe.uncork();
    this.check();
  }

  /**
   * Since when the socket has taken nothing although there is something for it; undefined while it moves. Called by the sweeper,
   * which also finds an outlet that has become empty enough without anything being written.
   */
  stalledSince(now: number): number | undefined {
    this.check();
    const queue = queuedBytes(this.options.pipe);
    const moved = this.writes !== this.seenWrites || queue !== this.seenQueue;
    this.seenWrites = this.writes;
    this.seenQueue = queue;
    if (this.unsent === 0 || moved) this.stalledFrom = undefined;
    else this.stalledFrom ??= now;
    return this.stalledFrom;
  }

  private cork(): void {
    const { corks, pipe } = this.options;
    if (corks.add(this)) pipe.cork();
  }

  private readonly taken = (error?: Error | null): void => {
    if (error) return;
    this.writes++;
    if (this.full) this.check();
  };

  private check(): void {
    const { unsentBytesMax, onFull } = this.options;
    const { unsent } = this;
    if (!this.full && unsent > unsentBytesMax) {
      this.full = true;
      onFull(true);
    } else if (this.full && unsent <= unsentBytesMax / 2) {
      this.full = false;
      onFull(false);
    }
  }
}

/**
 * What the kernel has not taken of the write under way. Node has no public name for it (its own socket timeout reads the same field);
 * without it a slow reader would show no progress before a whole write of up to 1 MiB got through.
 */
function queuedBytes(pipe: Pipe): number {
  const { _handle: handle } = pipe as Pipe & { readonly _handle?: { readonly writeQueueSize?: number } | null };
  return handle?.writeQueueSize ?? 0;
}
