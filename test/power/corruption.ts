// Spoils files of a folder, one thing at a time, and looks at what a start makes of it. Right are: everything reads as before; what
// is lost is reported by name, with its offsets kept; or the start is refused with words that say where. Wrong is anything else.

import { basename, dirname } from "node:path";
import { openLogStore } from "../../src/store/log/log-store.ts";
import type { ShardLog } from "../../src/store/log/shard-log.ts";
import { type Damage, StoreError } from "../../src/store/store.ts";
import type { Dice } from "../support/dice.ts";
import { append, readAll } from "../support/store-blocks.ts";
import { MemoryDisk, memoryTable } from "../support/store-files.ts";
import type { Folder } from "./disk.ts";
import { type Place, placesOf } from "./places.ts";
import { probeStream } from "./view.ts";

export type Outcome = "same" | "reported" | "refused" | "WRONG";

export interface Corruption {
  readonly kind: string;
  readonly file: string;
  readonly what: string;
  readonly folder: Folder;
}

export interface CorruptionResult {
  readonly outcome: Outcome;
  readonly fault?: string;
}

export interface CorruptionFault {
  readonly corruption: Omit<Corruption, "folder">;
  readonly fault: string;
}

export interface CorruptionCounts {
  total: number;
  /** By kind, then by outcome. */
  readonly kinds: Record<string, Partial<Record<Outcome, number>>>;
}

export interface CorruptionOptions {
  readonly dice: Dice;
  /** How many by chance; besides, so many percent of those at each kind of place, and ten times as many in the newest files. */
  readonly count: number;
  readonly sharePercent: number;
  readonly faultsMax: number;
  readonly progress?: (text: string) => void;
}

export async function spoilFolder(
  source: Source,
  options: CorruptionOptions,
  counts: CorruptionCounts,
): Promise<CorruptionFault[]> {
  const spoiler = await Spoiler.of(source, options.dice);
  if (typeof spoiler === "string") {
    return [{ corruption: { kind: "nothing was done", file: source.root, what: "" }, fault: spoiler }];
  }
  const found: CorruptionFault[] = [];
  for (const list of [spoiler.structural(options.sharePercent), spoiler.byChance(options.count)]) {
    for (const corruption of list) {
      const { kind, file, what } = corruption;
      const { outcome, fault } = await spoiler.judge(corruption);
      counts.total++;
      const sums = counts.kinds[kind] ?? {};
      counts.kinds[kind] = { ...sums, [outcome]: (sums[outcome] ?? 0) + 1 };
      if (fault !== undefined) found.push({ corruption: { kind, file, what }, fault });
      if (found.length >= options.faultsMax) return found;
      if (counts.total % 200 === 0) options.progress?.(`${counts.total} corruptions, ${found.length} wrong`);
    }
  }
  return found;
}

/** What a shard holds, to be compared event by event. */
interface Held {
  readonly epoch: number;
  readonly streams: ReadonlyMap<number, HeldStream>;
  readonly entries: string;
  readonly damage: readonly Damage[];
}

interface HeldStream {
  readonly start: number;
  readonly end: number;
  readonly events: ReadonlyMap<number, string>;
}

export interface Source {
  readonly root: string;
  readonly folder: Folder;
  readonly shards: number;
  readonly segmentBytes: number;
}

class Spoiler {
  private readonly source: Source;
  private readonly dice: Dice;
  private readonly truth: readonly Held[];
  private readonly files: readonly { path: string; bytes: Buffer; places: Place[]; records: Place[] }[];

  /** Or what is wrong with the folder before anything was done to it. */
  static async of(source: Source, dice: Dice): Promise<Spoiler | string> {
    const opened = await open(source, MemoryDisk.of(source.folder), [...Array(source.shards).keys()]);
    const truth = await Promise.all(opened.shards.map(held));
    await opened.close();
    const damage = truth.flatMap((shard) => shard.damage);
    if (damage.length > 0) return `damage is reported: ${JSON.stringify(damage)}`;
    return new Spoiler(source, dice, truth);
  }

  private constructor(source: Source, dice: Dice, truth: readonly Held[]) {
    this.source = source;
    this.dice = dice;
    this.truth = truth;
    this.files = [...source.folder]
      .filter(([path]) => dirname(path) !== source.root)
      .map(([path, bytes]) => ({ path, bytes, ...placesOf(basename(path), bytes) }))
      .sort((a, b) => (basename(a.path) < basename(b.path) ? 1 : -1));
  }

  /** One bit and one byte at each kind of place of each file, newest files first; `share` percent of those, ten times as many in the newest. */
  *structural(share: number): Generator<Corruption> {
    for (const { path, bytes, places } of this.files) {
      const isNewest = places.some(({ what }) => what === "unused" || what === "all");
      const seen = new Map<string, number>();
      for (const { what, from, to } of places) {
        const times = seen.get(what) ?? 0;
        seen.set(what, times + 1);
        if (times >= 2) continue;
        for (const at of new Set([from, from + this.dice.below(to - from), to - 1])) {
          if (!this.dice.chance(isNewest ? 10 * share : share)) continue;
          yield this.change("bit", path, what, bytes, (out) => flip(out, at, 1 << this.dice.below(8)));
          yield this.change("byte", path, what, bytes, (out) => flip(out, at, 1 + this.dice.below(255)));
        }
      }
    }
  }

  *byChance(count: number): Generator<Corruption> {
    for (let i = 0; i < count; i++) yield this.once(this.dice.pick(this.files));
  }

  private once({ path, bytes, places, records }: Spoiler["files"][number]): Corruption {
    const { dice } = this;
    const at = dice.below(Math.max(1, bytes.length));
    const what = places.find(({ from, to }) => from <= at && at < to)?.what ?? "";
    const record = records.length > 0 ? dice.pick(records) : { from: 0, to: Math.min(64, bytes.length), what: "" };
    const last = records.at(-1) ?? record;
    const sector = (size: number) => Math.floor(dice.below(Math.max(1, last.to)) / size) * size;
    switch (dice.below(10)) {
      case 0:
        return this.change("bit", path, what, bytes, (out) => flip(out, at, 1 << dice.below(8)));
      case 1:
        return this.change("byte", path, what, bytes, (out) => flip(out, at, 1 + dice.below(255)));
      case 2: {
        const inLast = last.from + dice.below(last.to - last.from);
        return this.change("bit in the last record", path, last.what, bytes, (out) =>
          flip(out, inLast, 1 << dice.below(8)),
        );
      }
      case 3: {
        const size = dice.below(last.to);
        const within = places.find(({ from, to }) => from <= size && size < to)?.what ?? "";
        const where = `at ${size} of ${bytes.length}, ${within}`;
        return this.change("cut tail", path, where, bytes.subarray(0, size), () => undefined);
      }
      case 4:
        return this.change(
          "cut tail",
          path,
          "between records",
          bytes.subarray(0, record.to === last.to ? last.from : record.to),
          () => undefined,
        );
      case 5:
      case 6: {
        const size = dice.pick([512, 4096]);
        const from = sector(size);
        return this.change(`zero ${size}`, path, `at ${from}`, bytes, (out) =>
          out.fill(0, Math.min(from, out.length), Math.min(from + size, out.length)),
        );
      }
      case 7: {
        const [a, b] = [sector(512), sector(512)];
        return this.change("swap sectors", path, `at ${a} and ${b}`, bytes, (out) => {
          const length = Math.min(512, out.length - Math.max(a, b));
          const first = Buffer.from(out.subarray(a, a + length));
          out.copyWithin(a, b, b + length);
          out.set(first, b);
        });
      }
      case 8: {
        const copy = bytes.subarray(record.from, record.to);
        const to = dice.chance(50) ? record.to : last.to;
        return this.change("duplicate record", path, record.what, grown(bytes, to + copy.length), (out) =>
          out.set(copy, to),
        );
      }
      default: {
        const other = dice.pick(this.files);
        return this.change("another file in its place", path, basename(other.path), other.bytes, () => undefined);
      }
    }
  }

  private change(kind: string, path: string, what: string, bytes: Buffer, spoil: (out: Buffer) => void): Corruption {
    const out = Buffer.from(bytes);
    spoil(out);
    return { kind, file: path, what, folder: new Map([...this.source.folder, [path, out]]) };
  }

  /** Only the shard is opened whose file was spoiled. */
  async judge({ folder, file }: Corruption): Promise<CorruptionResult> {
    const number = Number(/shard-(\d+)$/.exec(dirname(file))?.[1]);
    const disk = MemoryDisk.of(new Map([...folder].filter(([path]) => dirname(path) === dirname(file))));
    try {
      const opened = await open(this.source, disk, [number]);
      const [found] = await Promise.all(opened.shards.map(held));
      for (const shard of opened.shards) await append(shard, probeStream, ["probe"]);
      for (const shard of opened.shards) await shard.settled();
      await opened.close();
      const fault = compareShard(this.truth[number], found) ?? (await this.again(disk, number, found));
      if (fault !== undefined) return { outcome: "WRONG", fault };
      if (found.damage.length === 0) return { outcome: "same" };
      // What was spoiled is kept, for somebody to look at: under its name or set aside.
      const spoiled = folder.get(file)!;
      // A file that ends between two records has nothing in it that is not good. Fewer bytes than the magic of a head are nothing.
      const end = placesOf(basename(file), spoiled).records.at(-1)?.to ?? 0;
      const good = end <= spoiled.length && spoiled.length < end + 4;
      const kept = good || disk.paths().some((path) => disk.content(path).equals(spoiled));
      return kept
        ? { outcome: "reported" }
        : { outcome: "WRONG", fault: `reported, but the bytes of ${file} are gone` };
    } catch (error) {
      if (!(error instanceof StoreError))
        return { outcome: "WRONG", fault: `thrown: ${error instanceof Error ? error.stack : error}` };
      if (!error.message.includes(dirname(file)))
        return { outcome: "WRONG", fault: `refused without a place: ${error.message}` };
      const changed = [...folder].find(
        ([path, bytes]) => !disk.paths().includes(path) || !disk.content(path).equals(bytes),
      );
      if (changed !== undefined && /\.(log|damaged)$/.test(changed[0]))
        return { outcome: "WRONG", fault: `refused, and ${changed[0]} was changed` };
      return { outcome: "refused" };
    }
  }

  /** The next start finds the same, and says the same of what is lost. */
  private async again(disk: MemoryDisk, number: number, found: Held): Promise<string | undefined> {
    if (found.damage.length === 0 && !this.dice.chance(20)) return undefined;
    const opened = await open(this.source, disk, [number]);
    const [next] = await Promise.all(opened.shards.map(held));
    await opened.close();
    const fault = compareShard(this.truth[number], next);
    if (fault !== undefined) return `at the start after that: ${fault}`;
    // A file in which nothing lives is set aside by then, and no event is missing.
    const isMissing = [...this.truth[number].streams].some(([stream, { events }]) => {
      return [...events.keys()].some((offset) => found.streams.get(stream)?.events.has(offset) !== true);
    });
    if (isMissing && next.damage.length === 0) return "the next start reports nothing";
    const probes = next.streams.get(probeStream)?.end;
    return probes === (found.streams.get(probeStream)?.end ?? 0) + 1
      ? undefined
      : "lost what was committed after the damage";
  }
}

function compareShard(truth: Held, found: Held): string | undefined {
  const { damage } = found;
  if (found.epoch < truth.epoch) return `epoch ${found.epoch} was given before`;
  for (const [stream, was] of truth.streams) {
    const is = found.streams.get(stream);
    // A topic that was made in a record that is lost: nobody can name it.
    if (is === undefined && damage.some((one) => one.stream === undefined)) continue;
    if (is === undefined) return `stream ${stream} is gone, and no damage is reported`;
    if (is.end < was.end) return `stream ${stream} ends at ${is.end}, not at ${was.end}: offsets would be given again`;
    for (const [offset, event] of was.events) {
      const now = is.events.get(offset);
      if (now === event) continue;
      if (now !== undefined) return `stream ${stream} ${offset}: another event`;
      const named = damage.some(({ stream: of, from = 0, to = 0 }) => of === stream && from <= offset && offset < to);
      if (!named) return `stream ${stream} ${offset}: lost without a word`;
    }
    for (const offset of is.events.keys()) {
      if (was.events.has(offset) || damage.length > 0) continue;
      return `stream ${stream} ${offset}: nobody stored that`;
    }
  }
  if (found.entries !== truth.entries && damage.length === 0) return "entries went back without a word";
  return undefined;
}

async function held(shard: ShardLog): Promise<Held> {
  const streams = new Map<number, HeldStream>();
  for (const stream of shard.streams()) {
    const { start, end } = shard.head(stream)!;
    const events = new Map<number, string>();
    for (const block of await readAll(shard, stream, 256 * 1024)) {
      for (let i = 0; i < block.count; i++) {
        const offset = block.firstOffset + i;
        const { key, id, ts, meta } = block.pack.extension(i);
        const payload = Buffer.from(block.pack.payload(i)).toString("latin1");
        if (offset >= start)
          events.set(offset, JSON.stringify([block.storedAt, block.salt, payload, key, id, ts, meta]));
      }
    }
    streams.set(stream, { start, end, events });
  }
  const entries = [...shard.entries("")]
    .map(([key, value]) => `${key} ${Buffer.from(value).toString("latin1")}`)
    .join("\n");
  // After reading: some of it is found only then.
  return { epoch: shard.epoch, streams, entries, damage: shard.damage() };
}

async function open(source: Source, disk: MemoryDisk, numbers: readonly number[]) {
  const { root, segmentBytes } = source;
  const store = openLogStore({ path: root, files: disk, segmentBytes, openTable: async () => memoryTable() });
  const shards: ShardLog[] = [];
  for (const number of numbers) shards.push((await store.openShard(number)) as ShardLog);
  return { shards, close: () => store.close() };
}

function flip(bytes: Buffer, at: number, mask: number): void {
  bytes[at] ^= mask;
}

function grown(bytes: Buffer, length: number): Buffer {
  const out = Buffer.alloc(Math.max(bytes.length, length));
  out.set(bytes);
  return out;
}
