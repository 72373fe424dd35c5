// The canonical work by Narthex, by the bare path, and by what one could pick instead, all by the same driver and taking turns. Each of the
// others is started from Debian's packages with what its makers call right for durable work; one that is not installed is left out with
// a line. PEERS=redis,nats,rabbitmq picks some of them, RATE=20000 publishes at a steady pace, SVG=path draws what came out.

import { writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { drawBars } from "./support/bars.ts";
import { compare } from "./support/compare.ts";
import { median, type Result, table } from "./support/report.ts";
import { findProgram } from "./support/server-process.ts";
import { numberFrom, settings } from "./support/settings.ts";
import type { System } from "./support/system.ts";
import { startBare } from "./systems/bare.ts";
import { startNarthex } from "./systems/narthex.ts";
import { canSyncAlways, startNats } from "./systems/nats.ts";
import { findRabbit, startRabbit } from "./systems/rabbitmq.ts";
import { startRedis } from "./systems/redis.ts";

type Start = () => Promise<System>;

interface Peer {
  /** Of Debian, and of the program. */
  readonly packageName: string;
  readonly find: () => string | undefined;
  readonly starts: (program: string) => readonly Start[];
}

// Node compiles what runs often; the others are as fast at once.
const set = settings({ n: 60_000, warmUp: 150_000 });
const perSecond = numberFrom("RATE", 0) || undefined;

const peers: Readonly<Record<string, Peer>> = {
  redis: {
    packageName: "redis-server",
    find: () => findProgram("redis-server"),
    starts: (program) => [() => startRedis(program, set, "always"), () => startRedis(program, set, "everysec")],
  },
  nats: {
    packageName: "nats-server",
    find: () => findProgram("nats-server"),
    starts(program) {
      const always = canSyncAlways(program);
      if (!always) console.log("skipped: this nats-server does not know sync_interval: always (it came with 2.10)");
      return [() => startNats(program, set, "default"), ...(always ? [() => startNats(program, set, "always")] : [])];
    },
  },
  rabbitmq: {
    packageName: "rabbitmq-server",
    find: findRabbit,
    starts: (program) => [() => startRabbit(program, set, "classic"), () => startRabbit(program, set, "quorum")],
  },
};

function startsOf(names: readonly string[]): Start[] {
  const starts: Start[] = [];
  for (const name of names) {
    const peer = peers[name];
    if (peer === undefined) throw new Error(`PEERS has ${name}; there are ${Object.keys(peers).join(", ")}`);
    const program = peer.find();
    if (program !== undefined) starts.push(...peer.starts(program));
    else console.log(`skipped: ${peer.packageName} is not installed (apt-get install ${peer.packageName})`);
  }
  return starts;
}

/** The median of each number over the rounds. */
function medians(rounds: readonly (readonly Result[])[]) {
  return rounds[0].map(({ system, durability, version }, i) => {
    const of = (number: (result: Result) => number | undefined) => median(rounds.map((round) => number(round[i]) ?? 0));
    return {
      system,
      durability,
      version: version as string | undefined,
      rate: Math.round(of((result) => result.events_per_s)),
      server: of((result) => result.cpu_us_per_event.server),
      client: of((result) => result.cpu_us_per_event.client),
      p50: of((result) => result.p50),
      p99: of((result) => result.p99),
    };
  });
}

function draw(rows: ReturnType<typeof medians>): string {
  const versions = rows.flatMap(({ version }) => (version === undefined ? [] : [version]));
  return drawBars({
    title: "Publish, store, lease, receive and acknowledge",
    columns: ["events/s: more is better", "server CPU per event, µs: less is better"],
    bars: rows.map(({ system, durability, rate, server }) => ({
      name: system,
      note: durability,
      values: [rate, server],
      ours: system === "narthex",
    })),
    footer: [
      `${set.n} events of ${set.payloadBytes} bytes`,
      perSecond === undefined ? `window ${set.window}` : `${perSecond}/s`,
      `medians of ${set.pairs} rounds taking turns`,
      `${cpus().length} cores`,
      ...new Set(versions),
    ].join(" · "),
  });
}

const others = [() => startBare(set), ...startsOf(process.env.PEERS?.split(",") ?? Object.keys(peers))];
const rounds = await compare("peers", set, [() => startNarthex(set), ...others], {
  pairs: others.map((_, i) => [0, i + 1] as const),
  perSecond,
});
const rows = medians(rounds);
console.log(
  table(
    [`medians of ${set.pairs} rounds`, "events/s", "server µs", "client µs", "p50 ms", "p99 ms", "durability"],
    rows.map((row) => [
      row.version === undefined ? row.system : `${row.system} (${row.version})`,
      row.rate,
      row.server.toFixed(2),
      row.client.toFixed(2),
      row.p50.toFixed(1),
      row.p99.toFixed(1),
      row.durability,
    ]),
  ),
);
if (process.env.SVG !== undefined) writeFileSync(process.env.SVG, draw(rows));
