// Redis Streams: an append-only file, one stream, one consumer group. What is published in one turn of the event loop travels in one MULTI,
// so that Redis syncs it once; what one XREADGROUP brought is acknowledged by one XACK.

import { Redis } from "ioredis";
import { dataFolder } from "../../test/support/node-process.ts";
import { folderBytes } from "../support/folder-bytes.ts";
import type { Payload } from "../support/payload.ts";
import { freePort, startServer, versionOf } from "../support/server-process.ts";
import type { Settings } from "../support/settings.ts";
import type { Consumer, ConsumerOptions, Publisher, System } from "../support/system.ts";
import { gathering } from "./narthex.ts";

export type AppendFsync = "always" | "everysec";

const durability: Record<AppendFsync, string> = {
  always: "fsync before OK",
  everysec: "OK at once, fsync every second",
};

export async function startRedis(program: string, set: Settings, appendFsync: AppendFsync): Promise<System> {
  const folder = dataFolder();
  const port = await freePort();
  // The append-only file is what makes it durable; snapshots beside it would only take time.
  const options = { port, bind: "127.0.0.1", dir: folder.path, appendonly: "yes", appendfsync: appendFsync, save: "" };
  const server = await startServer({
    program,
    args: Object.entries(options).flatMap(([name, value]) => [`--${name}`, String(value)]),
    cwd: folder.path,
    ready: /Ready to accept connections/,
  });
  // A server that ends in the middle of a bench ends the bench.
  const open = () => new Redis({ port, retryStrategy: () => null });
  return {
    name: `Redis Streams, ${appendFsync}`,
    durability: durability[appendFsync],
    version: `redis ${versionOf(program)}`,
    publisher: (topic) => publisher(open(), topic, set.window),
    consumer: (options) => consumer(open(), options),
    cpu: async () => ({ server: server.micros() }),
    storedBytes: async () => folderBytes(folder.path),
    async stop() {
      await server.stop();
      folder.remove();
    },
  };
}

async function publisher(redis: Redis, topic: string, window: number): Promise<Publisher> {
  const send = async (payloads: readonly Payload[]) => {
    const transaction = redis.multi();
    for (const payload of payloads) transaction.xadd(topic, "*", "e", JSON.stringify(payload));
    for (const [error] of (await transaction.exec()) ?? []) if (error !== null) throw error;
  };
  // Half a window, so that the next one is made while one is under way.
  return gathering(Math.ceil(window / 2), send, async () => redis.disconnect());
}

/** What XREADGROUP answers: for each stream its name and its entries, each with its id and its fields. */
type Streams = readonly (readonly [string, readonly (readonly [string, readonly string[]])[]])[] | null;

async function consumer(redis: Redis, { topic, group, window, onEvent }: ConsumerOptions): Promise<Consumer> {
  await redis.xgroup("CREATE", topic, group, "0", "MKSTREAM");
  const acks = new Set<Promise<unknown>>();
  let closing = false;
  const consume = async () => {
    while (!closing) {
      const answer = await redis.xreadgroup("GROUP", group, "one", "COUNT", window, "BLOCK", 0, "STREAMS", topic, ">");
      for (const [, entries] of (answer as Streams) ?? []) {
        for (const [, [, text]] of entries) onEvent(JSON.parse(text) as Payload);
        const ack = redis.xack(topic, group, ...entries.map(([id]) => id));
        acks.add(ack);
        void ack.then(() => acks.delete(ack));
      }
    }
  };
  const consumed = consume().catch((error: Error) => {
    if (!closing) throw error;
  });
  return {
    settled: async () => void (await Promise.all(acks)),
    async close() {
      closing = true;
      redis.disconnect();
      await consumed;
    },
  };
}
