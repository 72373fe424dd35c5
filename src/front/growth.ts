// A topic of dead letters may get another partition while somebody is subscribed to it, since it needs one in each shard of its
// source (actors/catalog.ts). A lease table asks for that, and nobody here hears of it: so the catalog is asked now and then.

import { isOurs } from "../protocol/names.ts";
import { sleep } from "../runtime/clock.ts";
import type { Hall } from "./hall.ts";
import type { Route } from "./router.ts";

const lookEveryMs = 5000;

/** Goes on as long as the process, or until `over`. */
export async function watchGrowth(
  { clock, router, members }: Pick<Hall, "clock" | "router" | "members">,
  over: () => boolean,
): Promise<void> {
  for (;;) {
    await sleep(clock, lookEveryMs, { background: true });
    if (over()) return;
    const routes = new Map<number, Route>();
    for (const { route } of members.subscriptions) {
      const known = routes.get(route.record.id)?.partitions.length ?? Number.POSITIVE_INFINITY;
      if (isOurs(route.topic) && route.partitions.length < known) routes.set(route.record.id, route);
    }
    for (const route of routes.values()) {
      const grown = await router.grown(route);
      if (grown === undefined) continue;
      for (const subscription of [...members.subscriptions]) subscription.grow(grown);
    }
  }
}
