// Faults in the machinery: what a commit covers, what waits for it, what becomes of a cell that fails.

export const runtimeFaults = [
  {
    name: "ok-before-commit",
    fault: "what is gathered counts as durable as soon as its commit is handed to the store",
    promise: "G1",
    file: "src/runtime/pipeline.ts",
    find: "store.commit(built.commit).then(\n        () => this.owner.later(() => this.succeed(flight)),",
    replace: `this.owner.later(() => this.owner.committed({ ...flight, held: [], persisted: [] }));
      store.commit(built.commit).then(
        () =>
          this.owner.later(() => {
            this.flight = undefined;
            this.done = flight.sequence;
            this.owner.release(flight.held, flight.persisted);
          }),`,
    words: ["runtime-commit"],
  },
  {
    name: "deliver-before-commit",
    fault: "groups are told of events, and served them from memory, while the commit is under way",
    promise: "G1",
    file: "src/runtime/pipeline.ts",
    find: "store.commit(built.commit).then(\n        () => this.owner.later(() => this.succeed(flight)),",
    replace: `this.owner.later(() => this.owner.committed({ ...flight, placed: [], held: [], persisted: [] }));
      store.commit(built.commit).then(
        () => this.owner.later(() => this.succeed({ ...flight, blocks: [] })),`,
    also: [
      {
        file: "src/runtime/perform.ts",
        find: "const near = head === undefined || from >= head.end ? { blocks: [], next: from } : shard.readTail(stream, effect);",
        replace:
          "const near = shard.readTail(stream, effect) ?? (head === undefined || from >= head.end ? { blocks: [], next: from } : undefined);",
      },
    ],
    words: ["runtime-commit"],
  },
  {
    name: "reply-not-held",
    fault: "answers that stand for a commit leave at once",
    promise: "G1",
    file: "src/runtime/perform.ts",
    find: "if (effect.hold) shard.gather.held.push({ cell, request, value: effect.value });\n  else shard.respond",
    replace: "shard.respond",
    words: ["runtime-commit"],
  },
  {
    name: "drop-forgets-held-answers",
    fault: "a cell that failed loses its part of the commit, and its OKs still leave with it",
    promise: "G11",
    file: "src/runtime/gather.ts",
    find: "const dropped = this.held.filter((held) => held.cell === cell);",
    replace: "const dropped: Held[] = [];",
    words: ["runtime-commit", "runtime-supervision"],
  },
  {
    name: "drop-keeps-the-part",
    fault: "what a cell had gathered before it failed is committed all the same",
    promise: "G11",
    file: "src/runtime/gather.ts",
    find: "this.parts.delete(cell);",
    replace: "",
    words: ["runtime-commit", "runtime-supervision"],
  },
  {
    name: "half-a-part-committed",
    fault: "the events of a cell are committed although its cursors and names could not be",
    promise: "G6",
    file: "src/runtime/gather.ts",
    find: "faults.push({ cell, error });\n        continue;",
    replace: "faults.push({ cell, error });",
    words: ["runtime-supervision"],
  },
  {
    name: "restart-during-commit",
    fault: "a failed actor starts from the store while a commit with its work is in flight",
    promise: "G10",
    file: "src/runtime/open-shard.ts",
    find: "if (!this.pausing.has(cell) || cell.lastCommit > this.pipeline.done) return;",
    replace: "if (!this.pausing.has(cell)) return;",
    words: ["runtime-shard", "runtime-supervision"],
  },
  {
    name: "news-for-the-predecessor",
    fault: "what was meant for an actor that failed reaches the one that took its place",
    promise: "G10",
    file: "src/runtime/open-shard.ts",
    find: 'if (cell.incarnation !== incarnation || (cell.status !== "running" && cell.status !== "full")) return;',
    replace: 'if (cell.status !== "running" && cell.status !== "full") return;',
    words: ["runtime-shard", "runtime-supervision"],
  },
  {
    name: "failed-commit-keeps-its-actors",
    fault: "after a failed commit the shard goes on with actors that take for stored what is not",
    promise: "G11",
    file: "src/runtime/pipeline.ts",
    find: "this.owner.commitFailed(refused, storeReason(error));",
    replace: "this.flight = undefined;\n    if (!refused) this.owner.commitFailed(refused, storeReason(error));",
    words: ["runtime-commit", "runtime-supervision"],
  },
  {
    name: "time-of-storing-falls",
    fault: "the time of storing follows the wall clock when it is set back",
    promise: "G2",
    file: "src/runtime/gather.ts",
    find: "Math.max(Math.floor(world.env.wall), head?.lastStoredAt ?? 0)",
    replace: "Math.floor(world.env.wall)",
    words: ["runtime-commit"],
  },
  {
    name: "offset-given-twice",
    fault: "of two cells that append to one stream in a commit both get the same offsets",
    promise: "G2",
    file: "src/runtime/gather.ts",
    find: "for (const [stream, end] of ends) growthOf(stream).end = end;",
    replace: "",
    words: ["runtime-commit"],
  },
  {
    name: "state-not-with-its-events",
    fault: "what a cell has to write with the events it appends is left for a later commit",
    promise: "G10",
    file: "src/runtime/gather.ts",
    find: "if (part.persists || own.length > 0) {",
    replace: "if (part.persists) {",
    words: ["runtime-commit", "actors-partition"],
  },
];
