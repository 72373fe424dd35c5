// RabbitMQ: persistent messages through a confirm channel into a durable queue, classic or quorum. The client gathers what is written in
// one turn of the event loop by itself; what came in one turn is acknowledged by one ack of all up to the last.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { type ChannelModel, type ConfirmChannel, connect } from "amqplib";
import { dataFolder } from "../../test/support/node-process.ts";
import { isProgram } from "../../test/support/programs.ts";
import { type Payload, payloadBytes } from "../support/payload.ts";
import { findProgram, freePort, type ServerProcess, startServer } from "../support/server-process.ts";
import type { Settings } from "../support/settings.ts";
import type { Consumer, ConsumerOptions, Publisher, System } from "../support/system.ts";

export type QueueType = "classic" | "quorum";

const durability: Record<QueueType, string> = {
  classic: "fsync at intervals, before OK",
  quorum: "fsync before OK, a quorum of one",
};

/** Debian's program on the PATH changes to a user of its own; this is the one behind it. */
const debianProgram = "/usr/lib/rabbitmq/bin/rabbitmq-server";

export function findRabbit(): string | undefined {
  return isProgram(debianProgram) ? debianProgram : findProgram("rabbitmq-server");
}

export async function startRabbit(program: string, set: Settings, type: QueueType): Promise<System> {
  const folder = dataFolder();
  const port = await freePort();
  const names = await startNames(folder.path);
  const server = await startServer({
    program,
    env: environment(folder.path, { port, distPort: await freePort(), namesPort: names.port }),
    cwd: folder.path,
    ready: /Server startup complete/,
  });
  const open = () => connect(`amqp://guest:guest@127.0.0.1:${port}`, { noDelay: true });
  const admin = await open();
  const channel = await admin.createChannel();
  await channel.assertQueue(set.topic, { durable: true, arguments: { "x-queue-type": type } });
  return {
    name: `RabbitMQ, ${type} queue`,
    durability: durability[type],
    version: `rabbitmq ${admin.connection.serverProperties.version}`,
    publisher: async (topic) => publisher(await open(), topic),
    consumer: async (options) => consumer(await open(), options),
    cpu: async () => ({ server: server.micros() + names.process.micros() }),
    // What is acked is removed, so there is no number of bytes per event.
    storedBytes: async () => undefined,
    async stop() {
      await admin.close();
      await server.stop();
      await names.process.stop();
      folder.remove();
    },
  };
}

/** Erlang's name server, which would otherwise be started in the background and stay. */
async function startNames(folder: string): Promise<{ process: ServerProcess; port: number }> {
  const port = await freePort();
  const program = findProgram("epmd");
  if (program === undefined) throw new Error("epmd, which comes with Erlang, is not there");
  const args = ["-d", "-port", String(port), "-address", "127.0.0.1"];
  return { process: await startServer({ program, args, cwd: folder, ready: /epmd running/ }), port };
}

interface Ports {
  readonly port: number;
  readonly distPort: number;
  readonly namesPort: number;
}

/** Everything in the folder, everything on loopback, no plugins, nothing from /etc. */
function environment(folder: string, { port, distPort, namesPort }: Ports): Record<string, string> {
  const config = join(folder, "rabbitmq.conf");
  const plugins = join(folder, "enabled_plugins");
  writeFileSync(config, `listeners.tcp.1 = 127.0.0.1:${port}\n`);
  writeFileSync(plugins, "[].");
  return {
    HOME: folder,
    RABBITMQ_CONF_ENV_FILE: "/dev/null",
    RABBITMQ_CONFIG_FILE: config,
    RABBITMQ_ENABLED_PLUGINS_FILE: plugins,
    RABBITMQ_MNESIA_BASE: join(folder, "mnesia"),
    RABBITMQ_LOG_BASE: join(folder, "log"),
    RABBITMQ_LOGS: "-",
    RABBITMQ_NODENAME: "bench@localhost",
    RABBITMQ_DIST_PORT: String(distPort),
    ERL_EPMD_PORT: String(namesPort),
    ERL_EPMD_ADDRESS: "127.0.0.1",
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
    // The script then becomes the server, in place of waiting for one in the background.
    RUNNING_UNDER_SYSTEMD: "true",
  };
}

async function publisher(connection: ChannelModel, topic: string): Promise<Publisher> {
  const channel = await connection.createConfirmChannel();
  return {
    publish: (payload) =>
      new Promise<void>((resolve, reject) => {
        const confirmed = (error: unknown) => (error === null ? resolve() : reject(error));
        channel.sendToQueue(topic, Buffer.from(payloadBytes(payload)), { persistent: true }, confirmed);
      }),
    close: () => connection.close(),
  };
}

async function consumer(connection: ChannelModel, { topic, window, onEvent }: ConsumerOptions): Promise<Consumer> {
  const channel: ConfirmChannel = await connection.createConfirmChannel();
  await channel.prefetch(window);
  let last: Parameters<typeof channel.ack>[0] | undefined;
  const ackAll = () => {
    if (last !== undefined) channel.ack(last, true);
    last = undefined;
  };
  await channel.consume(topic, (message) => {
    if (message === null) throw new Error("the queue was deleted");
    onEvent(JSON.parse(message.content.toString()) as Payload);
    if (last === undefined) setImmediate(ackAll);
    last = message;
  });
  return {
    async settled() {
      ackAll();
      // An ack is not answered; what is asked after it on the channel is answered after it is taken.
      await channel.checkQueue(topic);
    },
    close: () => connection.close(),
  };
}
