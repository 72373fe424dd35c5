// Much of what would be harmless once. A flood is refused at its bound and leaves nothing behind.

import { WebSocket } from "ws";
import { eventually, within } from "../support/deadline.ts";
import { type Frame, PlainClient } from "../support/plain-client.ts";
import type { Attack } from "./attacks.ts";
import { RawSocket } from "./raw-socket.ts";
import { refusalFault, type Target, token } from "./target.ts";

const open = (target: Target) => PlainClient.open(target.node.wsUrl, token);

/** Many at a time; every answer is one of these outcomes. */
async function flood(
  client: PlainClient,
  count: number,
  frame: (n: number) => Record<string, unknown>,
  allowed: readonly string[],
  atATime = 100,
): Promise<Frame[]> {
  const answers: Frame[] = [];
  for (let from = 0; from < count; from += atATime) {
    const some = Array.from({ length: Math.min(atATime, count - from) }, (_, i) => client.request(frame(from + i)));
    answers.push(...(await Promise.all(some)));
  }
  for (const answer of answers) {
    const outcome = answer.op === "OK" ? (answer.stale === true ? "stale" : "OK") : String(answer.code);
    const fault = answer.op === "ERR" ? refusalFault(answer) : undefined;
    if (fault !== undefined || !allowed.includes(outcome))
      throw new Error(`${fault ?? outcome} to ${JSON.stringify(frame(0))}: ${JSON.stringify(answer)}`);
  }
  return answers;
}

async function forHttp(
  target: Target,
  count: number,
  path: (n: number) => string,
  allowed: readonly number[],
): Promise<void> {
  for (let from = 0; from < count; from += 50) {
    const some = await Promise.all(
      Array.from({ length: Math.min(50, count - from) }, (_, i) => target.get(path(from + i))),
    );
    for (const { status, text } of some)
      if (!allowed.includes(status)) throw new Error(`${path(0)}: ${status} ${text.slice(0, 300)}`);
  }
}

export const floodAttacks: readonly Attack[] = [
  {
    name: "connections that say nothing, half a handshake, or no AUTH",
    run: async (target, size) => {
      const before = target.fds;
      const all = await Promise.all(Array.from({ length: 100 * size }, () => RawSocket.open(target.port)));
      all.forEach((raw, i) => {
        if (i % 3 === 1) raw.write("GET / HTTP/1.1\r\nHost: loc");
        if (i % 3 === 2)
          raw.write(
            "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
          );
      });
      await eventually(5000, "others are answered", async () => (await target.get("/health/live")).status === 200);
      for (const raw of all) raw.destroy();
      await eventually(15_000, "their descriptors are back", () => target.fds <= before + 10);
    },
  },
  {
    name: "sockets that come, are let in and vanish",
    run: async (target, size) => {
      for (let i = 0; i < size; i++) {
        const some = await Promise.all(
          Array.from({ length: 100 }, async () => {
            const socket = new WebSocket(target.node.wsUrl, { perMessageDeflate: false });
            await within(
              15_000,
              "a socket",
              new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject)),
            );
            socket.send(JSON.stringify({ op: "AUTH", token }));
            socket.send('{"op":"SUBSCRIBE","topic":"h.a","group":"vanishing","opts":{"ephemeral":true}}');
            return socket;
          }),
        );
        for (const socket of some) socket.terminate();
      }
    },
  },
  {
    name: "subscriptions past their bound",
    run: async (target, size) => {
      const client = await open(target);
      const count = Math.min(1050, 105 * size);
      const answers = await flood(
        client,
        count,
        (n) => ({ op: "SUBSCRIBE", topic: "h.many", group: `s${n}`, opts: { ephemeral: true } }),
        ["OK", "limit"],
        20,
      );
      const taken = answers.filter(({ op }) => op === "OK").length;
      if (taken !== Math.min(1000, count))
        throw new Error(`${taken} subscriptions of one connection and groups of one topic`);
      client.socket.terminate();
      await eventually(20_000, "their groups are gone", async () => {
        const { text } = await target.get("/cursors?topic=h.many&limit=1");
        return (JSON.parse(text) as { cursors: unknown[] }).cursors.length === 0;
      });
    },
  },
  {
    name: "cursors and lags of groups that do not exist",
    run: async (target, size) => {
      const client = await open(target);
      await client.publish("h.a", 1);
      await flood(client, 500 * size, (n) => ({ op: "CURSOR", topic: "h.a", group: `no-${n}` }), ["OK"]);
      await forHttp(target, 50 * size, (n) => `/lag?topic=h.a&group=no-${n}`, [404]);
      await client.close();
    },
  },
  {
    name: "topics that do not exist",
    run: async (target, size) => {
      const client = await open(target);
      await flood(client, 500 * size, (n) => ({ op: "LATEST", topic: `no.such.${n}`, keys: [] }), ["unknown_topic"]);
      await forHttp(target, 50 * size, (n) => `/replay?topic=no.such.${n}`, [404]);
      await client.close();
    },
  },
  {
    name: "acks of ids and leases that are not one's own",
    run: async (target, size) => {
      const [holder, thief] = [await open(target), await open(target)];
      const opts = { from: "latest", maxInflight: 1, ackTimeoutMs: 60_000 };
      await holder.subscribe("h.theft", "g", opts);
      await holder.publish("h.theft", "mine");
      const event = await holder.next();
      await thief.subscribe("h.theft", "g", opts);
      const { id } = event.event;
      const [epoch, counter] = event.ctx.lease.split("-").map(Number);
      for (const op of ["ACK", "NACK", "MODACK"]) {
        await flood(thief, 100 * size, (n) => ({ op, topic: "h.theft", group: "g", id: `x${n}`, extend_ms: 1000 }), [
          "stale",
          "unknown_id",
        ]);
        await flood(thief, 20, () => ({ op, topic: "h.theft", group: "g", id, extend_ms: 1000 }), [
          "stale",
          "unknown_id",
        ]);
        // Every name but the lease's own, also those near to it.
        const near = (n: number) => `${epoch}-${counter + 1 + n}`;
        await flood(thief, 50, (n) => ({ op, topic: "h.theft", group: "g", id, lease: near(n), extend_ms: 1000 }), [
          "lease_lost",
        ]);
        await flood(
          thief,
          5,
          () => ({ op, topic: "h.theft", group: "another", id, lease: event.ctx.lease, extend_ms: 1000 }),
          ["not_subscribed"],
        );
      }
      const ack = await holder.ack(event, { lease: event.ctx.lease });
      if (ack.op !== "OK" || ack.stale === true) throw new Error(`the lease was taken away: ${JSON.stringify(ack)}`);
      if (thief.events.length > 0) throw new Error(`the event came to another: ${JSON.stringify(thief.events[0])}`);
      await Promise.all([holder.close(), thief.close()]);
      await fetch(`${target.node.http}/topics/h.theft`, {
        method: "DELETE",
        headers: { authorization: `Bearer ${token}` },
      });
    },
  },
  {
    name: "metrics, explanations, replays and exports by the hundred",
    run: async (target, size) => {
      await forHttp(target, 50 * size, () => "/metrics", [200]);
      await forHttp(target, 50 * size, (n) => `/explain?topic=h.a&group=g${n}`, [200, 404]);
      await forHttp(target, 50 * size, () => "/replay?topic=h.a&limit=1000", [200, 503]);
      await forHttp(target, 20 * size, () => "/export?topic=h.a", [200, 503]);
    },
  },
  {
    name: "requests sent ahead without end",
    run: async (target, size) => {
      const all = await Promise.all(Array.from({ length: 2 * size }, () => RawSocket.open(target.port)));
      for (const raw of all) {
        raw.socket.pause();
        raw.write("GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(5000));
      }
      await eventually(5000, "others are answered", async () => (await target.get("/health/live")).status === 200);
      for (const raw of all) raw.destroy();
    },
  },
];
