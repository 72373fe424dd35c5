// What did not check out, once per place.

import type { Damage } from "../store.ts";

/** Past this only the number grows: a dying disk must not fill the memory as well. */
export const damageMax = 1000;

export class DamageList {
  private readonly shard: number;
  private readonly damaged: (damage: Damage) => void;
  private readonly found = new Map<string, Damage>();

  constructor(shard: number, damaged: (damage: Damage) => void) {
    this.shard = shard;
    this.damaged = damaged;
  }

  add(damage: Omit<Damage, "shard">): void {
    const name = `${damage.place} ${damage.stream} ${damage.from}`;
    if (this.found.has(name) || this.found.size >= damageMax) return;
    const found = { shard: this.shard, ...damage };
    this.found.set(name, found);
    this.damaged(found);
  }

  /** Offsets without a block, as far as nothing else was said about them. */
  addGap(stream: number, from: number, to: number): void {
    const known = [...this.found.values()].filter((damage) => damage.stream === stream);
    let at = from;
    for (let found: Damage | undefined = known[0]; found !== undefined && at < to; ) {
      found = known.find((damage) => (damage.from ?? 0) <= at && at < (damage.to ?? 0));
      at = found?.to ?? at;
    }
    if (at < to)
      this.add({ place: `stream ${stream}`, reason: "the record of these offsets is lost", stream, from: at, to });
  }

  all(): readonly Damage[] {
    return [...this.found.values()];
  }
}
