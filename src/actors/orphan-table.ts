// Stands in for the lease table of a group whose partition is not known here: the topic was deleted. It says so and goes; nothing
// is removed unless asked, since a missing record could also be damage.

import { failure } from "../protocol/failure.ts";
import type { Actor, Effect, Notice, Put, Ref } from "./effects.ts";
import { entryKeys } from "./entries.ts";
import type { Message } from "./messages.ts";

export class OrphanTableActor implements Actor {
  private readonly stream: number;
  private readonly group: string;

  constructor(stream: number, group: string) {
    this.stream = stream;
    this.group = group;
  }

  receive(message: Message | Notice, ref: Ref): readonly Effect[] {
    if (message.type === "dropGroup") {
      return [{ type: "persist", soon: true }, { type: "reply", to: ref, value: null, hold: true }, { type: "stop" }];
    }
    return [
      { type: "reply", to: ref, value: failure("unknown_topic", `the topic of group ${this.group} is not known here`) },
      { type: "stop" },
    ];
  }

  persist(): readonly Put[] {
    return [
      [entryKeys.group(this.stream, this.group), null],
      [entryKeys.cursor(this.stream, this.group), null],
    ];
  }
}
