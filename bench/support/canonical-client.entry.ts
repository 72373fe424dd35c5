// One of several client processes that do the canonical work, each on a topic of its own: told where it is, how far to warm up, and when to work.

import { clientsOf, type Speech } from "../systems/narthex.ts";
import { Work } from "./canonical.ts";
import { answerWith } from "./child.ts";
import { Latencies } from "./latency.ts";
import type { Settings } from "./settings.ts";

export type ClientAsk =
  | {
      readonly type: "prepare";
      readonly url: string;
      readonly set: Settings;
      readonly speech: Speech;
      readonly partitioned: boolean;
    }
  | { readonly type: "warmUp"; readonly to: number }
  | { readonly type: "work" };

export interface ClientAnswer {
  /** Of the work, each event's. */
  readonly latencies: Float64Array;
  /** CPU time of the work. */
  readonly micros: number;
}

let prepared: { readonly work: Work; readonly set: Settings } | undefined;

answerWith<ClientAsk, ClientAnswer>(async (ask) => {
  const latencies = new Latencies(prepared?.set.n ?? 0);
  const before = process.cpuUsage();
  if (ask.type === "prepare") {
    const { url, set, speech, partitioned } = ask;
    const work = await Work.start(clientsOf(url, set, speech), set, set.warmUp + set.n, { partitioned });
    prepared = { work, set };
  } else {
    if (prepared === undefined) throw new Error("not prepared");
    const { work, set } = prepared;
    if (ask.type === "warmUp") await work.advance(ask.to);
    else {
      await work.advance(set.warmUp + set.n, { latencies });
      await work.settled();
    }
  }
  const { user, system } = process.cpuUsage(before);
  return { latencies: latencies.values, micros: user + system };
});
