// A node as a client sees it on the wire, played by the test: every connection that is dialled is kept with what was sent on it.

import type { ClientClock } from "../../src/client/clock.ts";
import type { Dial, WireEvents } from "../../src/client/wire.ts";
import { ManualClock } from "./manual-clock.ts";

export interface Frame {
  readonly op: string;
  readonly corr: number;
  readonly [field: string]: unknown;
}

export class FakeWire {
  readonly url: string;
  readonly events: WireEvents;
  readonly texts: Frame[] = [];
  readonly binaries: Uint8Array[] = [];
  closed = false;

  constructor(url: string, events: WireEvents) {
    this.url = url;
    this.events = events;
  }

  /** The newest frame of this op. */
  last(op: string): Frame {
    const frame = this.texts.findLast((text) => text.op === op);
    if (frame === undefined) throw new Error(`no ${op} was sent`);
    return frame;
  }

  answer(op: string, fields: object = {}): void {
    this.say({ op: "OK", corr: this.last(op).corr, ...fields });
  }

  refuse(op: string, code: string, more: object = {}): void {
    this.say({ op: "ERR", corr: this.last(op).corr, code, msg: `${op} was refused`, ...more });
  }

  say(frame: object): void {
    this.events.text(JSON.stringify(frame));
  }

  /** Opens and lets the client in. */
  admit(): void {
    this.events.opened();
    this.answer("AUTH", { batch: 1, max_frame: 8_388_608, max_payload: 1_048_576 });
  }

  drop(code = 1006, reason = "ECONNRESET"): void {
    this.closed = true;
    this.events.closed(code, reason);
  }
}

export function fakeDial(): { readonly dial: Dial; readonly wires: FakeWire[]; last(): FakeWire } {
  const wires: FakeWire[] = [];
  const dial: Dial = (url, events) => {
    const wire = new FakeWire(url, events);
    wires.push(wire);
    return {
      send: (frame) => {
        if (typeof frame === "string") wire.texts.push(JSON.parse(frame) as Frame);
        else wire.binaries.push(frame);
      },
      close: () => {
        wire.closed = true;
      },
      unsent: 0,
    };
  };
  return { dial, wires, last: () => wires[wires.length - 1] };
}

export function clientClockOf(manual: ManualClock): ClientClock {
  return {
    mono: () => manual.mono(),
    after: (ms, run) => manual.after(ms, run),
    soon: (run) => manual.soon(run),
    random: () => manual.random(1000) / 1000,
    nonce: (bytes) => manual.nonce(bytes),
  };
}

/** Lets promises that are settled be heard. */
export async function settle(): Promise<void> {
  for (let i = 0; i < 20; i++) await Promise.resolve();
}

export { ManualClock };
