// A node in a process of its own, as `npm start` runs it but without rate limits, and the ways of speaking to it.

import { connect } from "../../src/client/client.ts";
import { encodePack } from "../../src/protocol/pack.ts";
import { BatchClient } from "../../test/support/batch-client.ts";
import { dataFolder, startNode } from "../../test/support/node-process.ts";
import { mainMicros, processMicros } from "../support/cpu.ts";
import { folderBytes } from "../support/folder-bytes.ts";
import { type Payload, payloadBytes } from "../support/payload.ts";
import type { Settings } from "../support/settings.ts";
import type { Clients, Consumer, ConsumerOptions, Publisher, System } from "../support/system.ts";
import { plainConsumer, plainPublisher } from "./plain.ts";

/** `library`: narthex/client. `thin`: binary frames, no more than needed. `plain`: JSON frames of one event each. */
export type Speech = "library" | "thin" | "plain";

/** From the environment. */
export function speechFrom(fallback: Speech): Speech {
  const text = process.env.SPEECH ?? fallback;
  if (text === "library" || text === "thin" || text === "plain") return text;
  throw new Error(`SPEECH=${text} is none of library, thin, plain`);
}

export interface NarthexSystem extends System {
  readonly pid: number;
  readonly wsUrl: string;
  readonly http: string;
  readonly data: string;
}

/** With a folder of its own unless it is given one, which stays then. */
export async function startNarthex(
  set: Settings,
  speech: Speech = "library",
  env: Readonly<Record<string, string>> = {},
  kept?: string,
): Promise<NarthexSystem> {
  const folder = kept === undefined ? dataFolder() : { path: kept, remove: () => undefined };
  const profile = process.env.PROFILE;
  const node = await startNode({
    data: folder.path,
    sourceMaps: false,
    nodeFlags: [
      ...(profile === undefined ? [] : ["--cpu-prof", `--cpu-prof-dir=${profile}`]),
      ...(process.env.NODE_FLAGS?.split(" ").filter((flag) => flag !== "") ?? []),
    ],
    env: {
      STORE: set.store,
      WORKERS: String(set.workers),
      CONN_RATE: "off",
      TOPIC_RATE: "off",
      LOG_LEVEL: "warn",
      ...env,
    },
  });
  const pid = node.child.pid as number;
  // A bench that fails leaves nothing behind.
  const abandon = () => {
    node.child.kill("SIGKILL");
    folder.remove();
  };
  process.once("exit", abandon);
  const durability = set.store === "log" ? "fsync before OK" : "memory";
  return {
    name: speech === "library" ? "narthex" : `narthex (${speech})`,
    durability,
    pid,
    wsUrl: node.wsUrl,
    http: node.http,
    data: folder.path,
    ...clientsOf(node.wsUrl, set, speech),
    cpu: async () => {
      const workers = await workerMicros(node.http);
      return { server: processMicros([pid]), front: mainMicros(pid), workers };
    },
    storedBytes: async () => (set.store === "log" ? folderBytes(folder.path) : undefined),
    async stop() {
      process.off("exit", abandon);
      // Only an orderly end writes profiles.
      await node.kill(profile === undefined ? "SIGKILL" : "SIGTERM");
      folder.remove();
    },
  };
}

/** From wherever they are. */
export function clientsOf(url: string, set: Settings, speech: Speech): Clients {
  return {
    publisher: (topic) => publishers[speech](url, topic, set),
    consumer: (options) => consumers[speech](url, options),
  };
}

/** From the node's own metrics: which of the process's threads are workers only it can say. */
async function workerMicros(http: string): Promise<number> {
  const text = await (await fetch(`${http}/metrics`)).text();
  let seconds = 0;
  for (const [, value] of text.matchAll(/^narthex_cpu_seconds_total\{thread="worker-\d+"\} (\S+)$/gm)) {
    seconds += Number(value);
  }
  return seconds * 1e6;
}

const publishers: Record<Speech, (url: string, topic: string, set: Settings) => Promise<Publisher>> = {
  async library(url, topic) {
    const client = await connect(url);
    return { publish: (payload) => client.publish(topic, payload), close: () => client.close() };
  },
  async thin(url, topic, { batch }) {
    const client = await BatchClient.open(url);
    const handle = await client.handle(topic);
    return gathering(
      batch,
      async (payloads) => {
        const { runs } = await client.publish(
          handle,
          encodePack(payloads.map((payload) => ({ payload: payloadBytes(payload) }))),
        );
        for (const { status } of runs) if (status !== "stored") throw new Error(`a run was answered ${status}`);
      },
      async () => client.close(),
    );
  },
  plain: (url, topic) => plainPublisher(url, topic),
};

const decoder = new TextDecoder();

const consumers: Record<Speech, (url: string, options: ConsumerOptions) => Promise<Consumer>> = {
  async library(url, { topic, group, window, onEvent }) {
    const client = await connect(url);
    const stop = await client.subscribe(topic, group, ({ payload }) => onEvent(payload as Payload), {
      from: "earliest",
      maxInflight: window,
      concurrency: window,
      batchSize: Math.min(window, 1000),
    });
    // Closing a subscription waits for its acks.
    return { settled: () => stop(), close: () => client.close() };
  },
  async thin(url, { topic, group, window, onEvent }) {
    const client = await BatchClient.open(url);
    const acks = new Set<Promise<unknown>>();
    client.onEvents = (batch) => {
      for (let i = 0; i < batch.pack.count; i++) {
        onEvent(JSON.parse(decoder.decode(batch.pack.payload(i))) as Payload);
      }
      const ack = client.ack(batch);
      acks.add(ack);
      void ack.then(() => acks.delete(ack));
    };
    await client.subscribe(topic, group, { from: "earliest", batchSize: Math.min(window, 1000), maxInflight: window });
    return {
      settled: async () => void (await Promise.all(acks)),
      close: async () => client.close(),
    };
  },
  plain: (url, options) => plainConsumer(url, options),
};

/** Calls of one turn of the event loop travel together, up to `batch` of them: what every thin client does. */
export function gathering(
  batch: number,
  send: (payloads: readonly Payload[]) => Promise<void>,
  close: () => Promise<void>,
): Publisher {
  let payloads: Payload[] = [];
  let waiting: { resolve: () => void; reject: (error: Error) => void }[] = [];
  const flush = () => {
    if (payloads.length === 0) return;
    const told = waiting;
    const sent = send(payloads);
    payloads = [];
    waiting = [];
    sent.then(
      () => {
        for (const { resolve } of told) resolve();
      },
      (error: Error) => {
        for (const { reject } of told) reject(error);
      },
    );
  };
  return {
    publish(payload) {
      return new Promise<void>((resolve, reject) => {
        if (payloads.push(payload) === 1) setImmediate(flush);
        waiting.push({ resolve, reject });
        if (payloads.length >= batch) flush();
      });
    },
    close,
  };
}
