// The control plane between the front and a host: a few calls a minute, over comlink on a port of its own. A pending call of
// comlink is never rejected, not even when the other side is gone, so each one runs under a deadline here.

import type { MessagePort } from "node:worker_threads";
import { type Endpoint, expose, type Remote, wrap } from "comlink";
import type { Sample } from "../actors/effects.ts";
import type { Clock } from "./clock.ts";

/** How a test ends a thread. */
export type Crash = "throw" | "exit" | "oom";

export interface HostControl {
  /** Answers as soon as the shards are being opened. */
  place(shards: readonly number[]): void;
  drain(): Promise<void>;
  samples(): readonly Sample[];
  crash(how: Crash): void;
}

/** The same, as the front calls it. */
export interface HostCalls {
  place(shards: readonly number[], deadlineMs: number): Promise<void>;
  drain(deadlineMs: number): Promise<void>;
  samples(deadlineMs: number): Promise<readonly Sample[]>;
  /** Nothing comes back from a thread that is gone. */
  crash(how: Crash): void;
}

export function exposeControl(port: MessagePort, control: HostControl): void {
  expose(control, endpointOf(port));
}

export class Control implements HostCalls {
  private readonly remote: Remote<HostControl>;
  private readonly clock: Clock;

  constructor(port: MessagePort, clock: Clock) {
    this.remote = wrap<HostControl>(endpointOf(port));
    this.clock = clock;
  }

  place(shards: readonly number[], deadlineMs: number): Promise<void> {
    return this.within(deadlineMs, "place", this.remote.place(shards));
  }

  drain(deadlineMs: number): Promise<void> {
    return this.within(deadlineMs, "drain", this.remote.drain());
  }

  samples(deadlineMs: number): Promise<readonly Sample[]> {
    return this.within(deadlineMs, "samples", this.remote.samples());
  }

  crash(how: Crash): void {
    void this.remote.crash(how);
  }

  private within<T>(ms: number, what: string, call: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const late = () => reject(new Error(`no answer to ${what} within ${ms} ms`));
      // In the background: the call to a thread that has died must not keep the process alive.
      const timer = this.clock.after(ms, late, { background: true });
      call.then(resolve, reject).finally(() => timer.cancel());
    });
  }
}

/** A port of Node is an event target like one of the browser, only its type does not say so. */
function endpointOf(port: MessagePort): Endpoint {
  return port as object as Endpoint;
}
