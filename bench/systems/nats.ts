// NATS JetStream: a stream in files, a durable pull consumer that acknowledges each message explicitly. The client gathers what is written
// in one turn of the event loop by itself.

import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { AckPolicy, connect, DeliverPolicy, type NatsConnection, RetentionPolicy, StorageType } from "nats";
import { eventually } from "../../test/support/deadline.ts";
import { dataFolder } from "../../test/support/node-process.ts";
import { folderBytes } from "../support/folder-bytes.ts";
import { type Payload, payloadBytes } from "../support/payload.ts";
import { freePort, startServer, versionOf } from "../support/server-process.ts";
import type { Settings } from "../support/settings.ts";
import type { Consumer, ConsumerOptions, Publisher, System } from "../support/system.ts";

/** `default` is what a server does that is told nothing. */
export type SyncInterval = "default" | "always";

const durability: Record<SyncInterval, string> = {
  default: "OK at once, fsync every 2 minutes",
  always: "fsync before OK",
};
const stream = "BENCH";
const settledMs = 60_000;

export async function startNats(program: string, set: Settings, sync: SyncInterval): Promise<System> {
  const folder = dataFolder();
  const port = await freePort();
  const server = await startServer({
    program,
    args: ["-c", writeConfig(folder.path, port, sync)],
    cwd: folder.path,
    ready: /Server is ready/,
  });
  // Its requests otherwise gather a stack each, in case it is wanted for an error; that is a third of the client's work.
  const open = () => connect({ servers: `127.0.0.1:${port}`, reconnect: false, noAsyncTraces: true });
  const admin = await open();
  const manager = await admin.jetstreamManager();
  await manager.streams.add({
    name: stream,
    subjects: [set.topic],
    storage: StorageType.File,
    retention: RetentionPolicy.Limits,
    num_replicas: 1,
  });
  return {
    name: sync === "always" ? "NATS JetStream, sync always" : "NATS JetStream",
    durability: durability[sync],
    version: `nats-server ${versionOf(program)}`,
    publisher: async (topic) => publisher(await open(), topic),
    consumer: async (options) => consumer(await open(), options),
    cpu: async () => ({ server: server.micros() }),
    storedBytes: async () => folderBytes(folder.path),
    async stop() {
      await admin.close();
      await server.stop();
      folder.remove();
    },
  };
}

/** Servers before 2.10 do not know `sync_interval` and refuse to start with it. */
export function canSyncAlways(program: string): boolean {
  const folder = dataFolder();
  try {
    return spawnSync(program, ["-t", "-c", writeConfig(folder.path, 4222, "always")]).status === 0;
  } finally {
    folder.remove();
  }
}

function writeConfig(folder: string, port: number, sync: SyncInterval): string {
  const path = join(folder, "nats.conf");
  const lines = [
    "host: 127.0.0.1",
    `port: ${port}`,
    "jetstream {",
    `  store_dir: ${JSON.stringify(join(folder, "data"))}`,
    ...(sync === "always" ? ["  sync_interval: always"] : []),
    "}",
  ];
  writeFileSync(path, lines.join("\n"));
  return path;
}

async function publisher(connection: NatsConnection, topic: string): Promise<Publisher> {
  const jetstream = connection.jetstream();
  return {
    publish: (payload) => jetstream.publish(topic, payloadBytes(payload)),
    close: () => connection.close(),
  };
}

async function consumer(connection: NatsConnection, options: ConsumerOptions): Promise<Consumer> {
  const { topic, group, window, onEvent } = options;
  const manager = await connection.jetstreamManager();
  await manager.consumers.add(stream, {
    durable_name: group,
    filter_subject: topic,
    deliver_policy: DeliverPolicy.All,
    ack_policy: AckPolicy.Explicit,
    max_ack_pending: window,
  });
  const durable = await connection.jetstream().consumers.get(stream, group);
  const messages = await durable.consume({
    max_messages: window,
    callback: (message) => {
      onEvent(message.json<Payload>());
      message.ack();
    },
  });
  return {
    async settled() {
      // An ack is not answered; what the server has not seen of them yet it says itself.
      await connection.flush();
      await eventually(settledMs, "every ack is seen", async () => (await durable.info()).num_ack_pending === 0);
    },
    async close() {
      messages.stop();
      await connection.close();
    },
  };
}
