// Which cells want to hear that a stream has grown or was trimmed, as their actors say it in `follows`.

import type { Cell } from "./cell.ts";

export class Followers {
  private readonly streams = new Map<number, Set<Cell>>();

  of(stream: number): Iterable<Cell> {
    return this.streams.get(stream) ?? [];
  }

  /** Looks again at what the actor follows. */
  update(cell: Cell): void {
    const stream = cell.actor?.follows;
    if (cell.follows === stream || (cell.status !== "running" && cell.status !== "full")) return;
    this.remove(cell);
    if (stream === undefined) return;
    cell.follows = stream;
    const others = this.streams.get(stream);
    if (others === undefined) this.streams.set(stream, new Set([cell]));
    else others.add(cell);
  }

  remove(cell: Cell): void {
    if (cell.follows === undefined) return;
    const others = this.streams.get(cell.follows);
    others?.delete(cell);
    if (others?.size === 0) this.streams.delete(cell.follows);
    cell.follows = undefined;
  }
}
