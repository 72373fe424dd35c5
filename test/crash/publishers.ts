// Everybody who publishes: plain connections with many requests under way, the client library, which lives through all crashes and sends
// again by itself, and HTTP. What brought an id of its own and got no answer is sent again after the crash, under that id.

import { EventClient, NarthexError } from "../../src/client/client.ts";
import { dial } from "../../src/client/dial-node.ts";
import { pause } from "../support/deadline.ts";
import type { Dice } from "../support/dice.ts";
import { Usual } from "./endings.ts";
import type { Journal } from "./journal.ts";
import { smallLimits } from "./limits.ts";
import { type Promised, Publication, type TopicLog } from "./topic-log.ts";
import { type Answer, Wire } from "./wire.ts";

const keys = Array.from({ length: 12 }, (_, i) => `k${i}`);
const underWayMax = 24;
const librariesMax = 2;
/** Publishes by each library at the moment of a kill that is aimed at them. */
const surgeSize = 6;
/** What the journal counts of the library: stored before a kill, confirmed by the node after it. */
export const lostOk = "publishes of the library stored before a kill and confirmed after it";
/** Own ids are sent again on purpose so much before their window ends. */
const twinAgeMs = smallLimits.dedupeMs / 2;

interface Parts {
  readonly journal: Journal;
  readonly dice: Dice;
  /** The topics that may be published to now. */
  topics(): readonly TopicLog[];
  /** Whether this life of the node had its load: what goes on goes on slowly. */
  sated(): boolean;
  /** Whether this life of the node is over. */
  over(): boolean;
  /** By the clock of the events, before the node of this life was there. */
  startedAtWall(): number;
  url(): { readonly ws: string; readonly http: string };
}

export class Publishers {
  private readonly parts: Parts;
  private readonly retries: Publication[] = [];
  /** From the call to its confirmation, by the library, within one life. */
  readonly latency = new Usual(30);
  private readonly libraries: readonly EventClient[];
  private lastN = 0;
  private libraryOpen = 0;
  /** Of this life: sends that have no answer yet. */
  private waiting = new Set<Promise<unknown>>();

  constructor(parts: Parts) {
    this.parts = parts;
    this.libraries = Array.from(
      { length: librariesMax },
      () =>
        new EventClient("ws://127.0.0.1:1", {
          dial: (_url, events) => dial(parts.url().ws, events),
          connectTimeoutMs: 60_000,
          publishTimeoutMs: 60_000,
          reconnectMinMs: 5,
          reconnectMaxMs: 100,
        }),
    );
  }

  /** Publishes for one life of the node; resolves when all who wait for an answer have it or know that there will be none. */
  async live(): Promise<void> {
    const libraries = this.libraries.map((_, which) => this.viaLibrary(which));
    await Promise.all([this.plain(), this.plain(), this.viaHttp(), ...libraries]);
    await Promise.all(this.waiting);
  }

  /** Nothing is under way to this topic any more, and nothing will be sent again. */
  async quiet(log: TopicLog): Promise<boolean> {
    this.retries.splice(0, this.retries.length, ...this.retries.filter((one) => one.log !== log));
    const ends = performance.now() + 90_000;
    while ([...log.publications.values()].some(({ open }) => open > 0)) {
      if (this.parts.over()) return false;
      if (performance.now() > ends) this.parts.journal.fail(`publishes to ${log.name} are not answered within 90 s`);
      await pause(5);
    }
    return true;
  }

  close(): void {
    for (const library of this.libraries) library.destroy();
  }

  // ------------------------------------------------------------------------------------------------------------- what

  private next(lane: string | undefined, tags = this.parts.dice.chance(15)): Publication | undefined {
    const { dice } = this.parts;
    const topics = this.parts.topics();
    if (topics.length === 0) return undefined;
    const log = dice.pick(topics);
    const twinOf = dice.chance(6) ? this.twin(log) : undefined;
    const n = ++this.lastN;
    const key = twinOf === undefined ? (dice.chance(70) ? dice.pick(keys) : undefined) : twinOf.key;
    const publication = new Publication({
      n,
      log,
      key,
      ownId: twinOf === undefined ? (dice.chance(50) ? `own:${n}` : undefined) : twinOf.ownId,
      tags: tags ? ["t1", "t2"] : undefined,
      // One that names what was stored before need not be stored behind what was sent before.
      lane: twinOf === undefined ? lane : undefined,
    });
    log.add(publication);
    return publication;
  }

  /** Somebody who publishes under an id that was used not long ago. */
  private twin(log: TopicLog): Publication | undefined {
    const recent = [...log.ownIds.values()].slice(-40).map(([first]) => first);
    const fresh = recent.filter(({ lastSentAt }) => performance.now() - lastSentAt < twinAgeMs);
    return fresh.length === 0 ? undefined : this.parts.dice.pick(fresh);
  }

  /** What got no answer and has an id comes first. */
  private retry(): Publication | undefined {
    const again = this.retries.shift();
    if (again === undefined || !this.parts.topics().includes(again.log)) return undefined;
    again.lane = undefined;
    this.parts.journal.count("publishes sent again under their id");
    return again;
  }

  private unanswered(publication: Publication, code: string, by: string): void {
    publication.log.refused(publication, code, by);
    const sure = publication.unknown === 0;
    if (sure || publication.ownId === undefined || performance.now() - publication.lastSentAt > twinAgeMs) return;
    this.retries.push(publication);
  }

  // -------------------------------------------------------------------------------------------------------------- how

  private async plain(): Promise<void> {
    const { parts } = this;
    const { dice } = parts;
    const wire = await Wire.connect(parts.url().ws, { event() {}, ended() {}, closed() {} });
    let underWay = 0;
    while (wire?.open && !parts.over()) {
      for (let burst = dice.chance(10) && !parts.sated() ? 12 : 1; burst > 0 && underWay < underWayMax; burst--) {
        const publication = this.retry() ?? this.next(`plain ${wire.name}`);
        if (publication === undefined) break;
        publication.log.sent(publication);
        underWay++;
        const { log, payload, options } = publication;
        parts.journal.note(publication.n, `PUBLISH to ${log.name} ${JSON.stringify(options)} (${wire.name})`);
        const answered = new Promise<Answer>((resolve) =>
          wire.send({ op: "PUBLISH", topic: log.name, payload, opts: options }, (answer) => {
            underWay--;
            if (answer?.op === "OK") log.confirmed(publication, answer as unknown as Promised, wire.name);
            else this.unanswered(publication, answer?.code ?? "closed", wire.name);
            resolve(answer);
          }),
        );
        this.track(answered);
      }
      await pause(dice.below(parts.sated() ? 300 : 50));
    }
    if (!parts.over()) return;
    wire?.drop();
  }

  /** Something for every partition, all at once. */
  surge(): void {
    for (const which of this.libraries.keys()) {
      for (let i = 0; i < surgeSize; i++) this.throughLibrary(which);
    }
  }

  private async viaLibrary(which: number): Promise<void> {
    const { parts } = this;
    const { dice } = parts;
    while (!parts.over()) {
      for (let burst = parts.sated() ? 1 : 1 + dice.below(8); burst > 0 && this.libraryOpen < 400; burst--) {
        this.throughLibrary(which);
      }
      await pause(10 + dice.below(parts.sated() ? 120 : 60));
    }
  }

  private throughLibrary(which: number): void {
    const { parts } = this;
    const publication = this.next(`library ${which}`);
    if (publication === undefined) return;
    const { log, payload, options, n } = publication;
    // Without a key the library keeps no order that it promises.
    if (options.key === undefined) publication.lane = undefined;
    log.sent(publication);
    this.libraryOpen++;
    parts.journal.note(n, `publish to ${log.name} ${JSON.stringify(options)} (library ${which})`);
    const sentAt = performance.now();
    const sentAtWall = parts.startedAtWall();
    void this.libraries[which]
      .publish(log.name, payload, options)
      .then(
        (event) => {
          if (sentAtWall === parts.startedAtWall()) this.latency.took(performance.now() - sentAt);
          else if (event.ts < parts.startedAtWall()) parts.journal.count(lostOk);
          this.guarded(() => log.confirmed(publication, event, `library ${which}`));
        },
        (error: Error) => {
          const code = error instanceof NarthexError ? error.code : String(error);
          // It gave up waiting, which does not call back what it may be sending just now.
          publication.astray = true;
          this.guarded(() => log.refused(publication, code, "library"));
          // On a machine that is too busy the time may not be enough; anything else is a refusal that there is no reason for.
          if (["timeout", "unknown_outcome"].includes(code)) return;
          this.guarded(() => parts.journal.fail(`the library is refused with ${code}: ${error.message}`, n));
        },
      )
      .finally(() => this.libraryOpen--);
  }

  private async viaHttp(): Promise<void> {
    const { parts } = this;
    const { dice } = parts;
    while (!parts.over()) {
      const publication = this.next(undefined, false);
      if (publication !== undefined) this.track(this.throughHttp(publication));
      await pause(40 + dice.below(parts.sated() ? 400 : 160));
    }
  }

  private async throughHttp(publication: Publication): Promise<void> {
    const { log, payload, ownId, key, n } = publication;
    publication.lane = undefined;
    log.sent(publication);
    this.parts.journal.note(n, `POST to ${log.name} as ${ownId ?? "-"} key ${key ?? "-"}`);
    let response: Response;
    let body: Promised & { code?: string };
    try {
      response = await fetch(`${this.parts.url().http}/publish/${log.name}`, {
        method: "POST",
        headers: {
          "content-type": "application/json",
          ...(ownId === undefined ? {} : { "x-narthex-id": ownId }),
          ...(key === undefined ? {} : { "x-narthex-key": key }),
        },
        body: JSON.stringify(payload),
        signal: AbortSignal.timeout(20_000),
      });
      body = (await response.json()) as Promised & { code?: string };
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      this.unanswered(publication, "closed", "HTTP");
      return;
    }
    this.guarded(() => {
      if (response.ok) log.confirmed(publication, body, "HTTP");
      else this.unanswered(publication, body.code ?? `status ${response.status}`, "HTTP");
    });
  }

  private track(answer: Promise<unknown>): void {
    this.waiting.add(answer);
    void answer.finally(() => this.waiting.delete(answer));
  }

  /** The journal has it; a promise that nobody waits for must not end the harness. */
  private guarded(hear: () => void): void {
    try {
      hear();
    } catch (error) {
      if (this.parts.journal.violation !== error) throw error;
    }
  }
}
