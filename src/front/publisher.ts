// PUBLISH and OPEN of one connection. An event passes the connection's budget, the routing and the topic's budget, each of which may
// have to be asked; then it is handed to the partitions and the next frame may go. Its answer comes when it is stored.

import { encodePublished, type PublishBatch } from "../protocol/batch.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import type { Corr, PublishFrame } from "../protocol/frames.ts";
import type { Budget } from "./budget.ts";
import type { Caller, Hall, Step } from "./hall.ts";
import type { Route } from "./router.ts";

interface Request {
  readonly topic: string;
  readonly count: number;
  readonly corr: Corr | undefined;
  readonly hand: (route: Route) => void;
}

const handleMax = 0xffff;

export class Publisher {
  private readonly hall: Hall;
  private readonly caller: Caller;
  private readonly budget: Budget;
  private readonly handles = new Map<string, number>();
  private readonly topics: string[] = [];

  constructor(hall: Hall, caller: Caller) {
    this.hall = hall;
    this.caller = caller;
    this.budget = hall.budgets.connection(`publish/${caller.id}`);
  }

  close(): void {
    this.budget.end();
  }

  single({ topic, entry, corr }: PublishFrame): Step {
    const { caller, hall } = this;
    return this.admit({
      topic,
      count: 1,
      corr,
      hand: (route) => {
        caller.began();
        hall.publishing.single(route, entry, (outcome) => {
          caller.ended();
          if (isFailure(outcome)) caller.refuse(outcome, corr);
          else caller.ok<"PUBLISH">(corr, outcome);
        });
      },
    });
  }

  batch({ handle, pack, batch, corr }: PublishBatch): Step {
    const { caller, hall } = this;
    const topic = this.topics[handle - 1];
    if (topic === undefined) return caller.refuse(failure("bad_frame", `no topic was opened as ${handle}`), corr);
    return this.admit({
      topic,
      count: pack.count,
      corr,
      hand: (route) => {
        caller.began();
        hall.publishing.batch(route, pack, batch, (outcome) => {
          caller.ended();
          if (isFailure(outcome)) caller.refuse(outcome, corr);
          else caller.say(encodePublished(corr, outcome));
        });
      },
    });
  }

  /** Gives a handle for the topic, which is made if it may be. */
  open(topic: string, corr: Corr | undefined): Step {
    const { caller, hall } = this;
    if (!caller.batches) return caller.refuse(failure("bad_frame", "OPEN is for clients that said batch: 1"), corr);
    const refused = this.refusal(topic);
    if (refused !== undefined) return caller.refuse(refused, corr);
    if (!this.handles.has(topic) && this.topics.length >= handleMax) {
      return caller.refuse(failure("limit", `this connection has opened ${handleMax} topics`), corr);
    }
    return caller.hold(corr, hall.router.resolve(topic, { create: true }), (route) => {
      if (isFailure(route)) return caller.refuse(route, corr);
      let handle = this.handles.get(topic);
      if (handle === undefined) {
        handle = this.topics.push(topic);
        this.handles.set(topic, handle);
      }
      return caller.ok<"OPEN">(corr, { handle, partitions: route.partitions.length, durability: route.durability });
    });
  }

  private refusal(topic: string): Failure | undefined {
    if (this.caller.draining) return failure("shutting_down", "the node is shutting down");
    if (!this.caller.rights.publish(topic)) return failure("forbidden", `no right to publish to ${topic}`);
    return undefined;
  }

  private admit(request: Request): Step {
    const refused = this.refusal(request.topic);
    if (refused !== undefined) return this.caller.refuse(refused, request.corr);
    const verdict = this.budget.take(
      request.count,
      (later) => this.caller.resume(this.route(request, later)),
      () => this.caller.behind(),
    );
    return verdict === "later" ? "held" : this.route(request, verdict);
  }

  private route(request: Request, refused: Failure | undefined): Step {
    if (refused !== undefined) return this.caller.refuse(refused, request.corr);
    const { router } = this.hall;
    const known = router.peek(request.topic);
    if (known !== undefined) return this.charge(request, known);
    return this.caller.hold(request.corr, router.resolve(request.topic, { create: true }), (route) => {
      if (!isFailure(route)) return this.charge(request, route);
      // `unavailable` would say that the event may be stored; without a way to the topic it surely is not.
      const notStored = route.code === "unavailable" ? { ...route, code: "publish_failed" as const } : route;
      return this.caller.refuse(notStored, request.corr);
    });
  }

  private charge(request: Request, route: Route): Step {
    const { caller, hall } = this;
    const finish = (refused: Failure | undefined): Step => {
      if (refused !== undefined) {
        this.budget.giveBack(request.count);
        return caller.refuse(refused, request.corr);
      }
      // Whoever went away before the event was handed over cannot have been told that it is stored.
      if (!caller.closed) request.hand(route);
      return "through";
    };
    const verdict = hall.budgets.topic(route).take(
      request.count,
      (later) => caller.resume(finish(later)),
      () => caller.behind(request.topic),
    );
    return verdict === "later" ? "held" : finish(verdict);
  }
}
