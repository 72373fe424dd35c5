// Binary frames of PROTOCOL.md: good ones, and ones whose bytes were hit, cut, joined or whose lengths lie.

import { type BatchName, encodePublish, encodeSettle } from "../../src/protocol/batch.ts";
import { codes } from "../../src/protocol/failure.ts";
import { encodePack, type PackEntry } from "../../src/protocol/pack.ts";
import type { Dice } from "../support/dice.ts";
import type { Shot } from "./grammar.ts";

const encoder = new TextEncoder();
const verbs = ["ack", "nack", "extend", "release"] as const;
const documented = new Set(["OK", "PUBLISHED", ...Object.keys(codes).filter((code) => code !== "internal")]);

export class BatchGrammar {
  private readonly dice: Dice;
  /** Of OPEN and of SUBSCRIBE. */
  private readonly handles: { readonly publish: number; readonly settle: number };
  // Text frames of the same connection count theirs from 1.
  private corr = 1_000_000_000;
  private seq = 0;

  constructor(dice: Dice, handles: { readonly publish: number; readonly settle: number }) {
    this.dice = dice;
    this.handles = handles;
  }

  next(): Shot {
    const { dice } = this;
    const corr = this.corr++;
    const publishes = dice.chance(50);
    const good = publishes ? this.publish(corr) : this.settle(corr);
    if (dice.chance(30)) {
      const allowed = publishes ? ["PUBLISHED", "publish_failed", "unknown_topic"] : ["OK"];
      return {
        data: good,
        kind: publishes ? "good batch" : "good SETTLE",
        corr: String(corr),
        allowed: new Set(allowed),
      };
    }
    const [data, allowed] = this.hit(good);
    const named = data.length < 8 ? undefined : String(new DataView(data.buffer, data.byteOffset).getUint32(4, true));
    return { data, kind: publishes ? "hit batch" : "hit SETTLE", corr: named, allowed };
  }

  private publish(corr: number): Uint8Array {
    const { dice } = this;
    const count = 1 + dice.below(20);
    const withIds = dice.chance(20);
    const entries = Array.from(
      { length: count },
      (_, i): PackEntry => ({
        payload: encoder.encode(dice.pick(["7", '"x"', '{"a":[1,2]}', JSON.stringify("y".repeat(dice.below(500)))])),
        ...(dice.chance(30) ? { key: `k${dice.below(20)}` } : {}),
        ...(withIds ? { id: `b:${corr}:${i}` } : {}),
        ...(dice.chance(10) ? { ts: dice.below(1e9) } : {}),
        ...(dice.chance(10) ? { meta: '{"tags":["a"]}' } : {}),
      }),
    );
    const batch: BatchName = { producer: "00112233445566778899aabbccddeeff", seq: ++this.seq };
    const header = { handle: this.handles.publish, corr, ...(dice.chance(40) ? { batch } : {}) };
    return encodePublish(header, encodePack(entries));
  }

  private settle(corr: number): Uint8Array {
    const { dice } = this;
    const verb = dice.pick(verbs);
    const runs = Array.from({ length: 1 + dice.below(5) }, () => ({
      partition: dice.below(4),
      offset: dice.pick([0, dice.below(1000), 2 ** 40]),
      count: 1 + dice.below(100),
      epoch: dice.below(4),
      token: dice.pick([0, dice.below(1000), 2 ** 50]),
    }));
    const ms = verb === "extend" ? { ms: 1 + dice.below(10_000) } : {};
    return encodeSettle({ handle: this.handles.settle, corr, verb, ...ms, runs });
  }

  private hit(good: Uint8Array): [Uint8Array, ReadonlySet<string>] {
    const { dice } = this;
    const data = Uint8Array.from(good);
    const view = new DataView(data.buffer);
    const broken = new Set(["bad_frame"]);
    switch (dice.below(7)) {
      case 0:
        return [data.slice(0, dice.below(data.length)), broken];
      case 1:
        return [Uint8Array.from([...data, ...data]), broken];
      case 2:
        return [Uint8Array.from([...data, 0]), broken];
      case 3:
        data[0] = dice.pick([0, 3, 0x11, 0x12, 0x7b, 0xff]);
        return [data, broken];
      case 4:
        view.setUint16(2, dice.pick([0, 99, 0xffff]), true);
        return [data, new Set(["bad_frame", "not_subscribed"])];
      case 5: {
        // Where the tables of lengths and counts stand.
        const at = 8 + 4 * dice.below(Math.max(1, Math.min(12, Math.floor((data.length - 12) / 4))));
        view.setUint32(at, dice.pick([0, 1, 0x7fffffff, 0x80000000, 0xffffffff, data.length]), true);
        return [data, documented];
      }
      default:
        for (let i = 0; i < 1 + dice.below(3); i++) data[dice.below(data.length)] ^= 1 << dice.below(8);
        return [data, documented];
    }
  }
}
