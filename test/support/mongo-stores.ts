// Stores over databases of their own, as several processes would have them: each with another name for its node.

import { realClock } from "../../src/runtime/clock.ts";
import { openDatabase } from "../../src/store/mongo/database.ts";
import { openMongoStore } from "../../src/store/mongo/mongo-store.ts";
import type { Damage, Store } from "../../src/store/store.ts";

export interface Reports {
  readonly messages: string[];
  readonly damages: Damage[];
}

export interface OpenedStore {
  readonly store: Store;
  readonly node: string;
  readonly url: string;
  readonly reports: Reports;
}

/** As the next process would: the database is looked at first. */
export async function openProcess(
  url: string,
  { workers = 1, ...options }: { readonly workers?: number; readonly commitMs?: number } = {},
): Promise<OpenedStore> {
  const { node } = await openDatabase({ url, workers, clock: realClock() });
  return openNamed(url, node, options);
}

/** Another life of a process that is known. */
export function openNamed(url: string, node: string, options: { readonly commitMs?: number } = {}): OpenedStore {
  const reports: Reports = { messages: [], damages: [] };
  const store = openMongoStore({
    url,
    node,
    commitMs: 10_000,
    ...options,
    clock: realClock(),
    report: (message) => void reports.messages.push(message),
    damaged: (damage) => void reports.damages.push(damage),
  });
  return { store, node, url, reports };
}
