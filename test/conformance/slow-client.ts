// G8, whatever the store.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Overrides } from "../../src/config.ts";
import { eventually, within } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { PlainClient } from "../support/plain-client.ts";

/** Adds its test; the caller runs it. `place` says where events are kept. */
export function slowClientCosts(place: () => Overrides): void {
  test("G8: a client that stops reading is paused, then closed with 4408, while another subscriber keeps its rate", async () => {
    const { node, http, ws: url } = await startHere({ ...place(), limits: { stalledMs: 1500 } });
    const [slow, quick, publisher] = await Promise.all([
      PlainClient.open(url),
      PlainClient.open(url),
      PlainClient.open(url),
    ]);
    await slow.subscribe("t", "slow", { from: "earliest", maxInflight: 10_000 });
    await quick.subscribe("t", "quick", { from: "earliest", maxInflight: 10_000 });
    (slow.socket as unknown as { _socket: { pause(): void } })._socket.pause();
    const payload = "x".repeat(50_000);
    const count = 400;
    const acks: Promise<unknown>[] = [];
    const reader = (async () => {
      for (let i = 0; i < count; i++) {
        const event = await quick.next(10_000);
        assert.is((event.event.payload as { i: number }).i, i);
        acks.push(quick.ack(event));
      }
    })();
    const started = performance.now();
    for (let i = 0; i < count; i++) await publisher.publish("t", { i, payload });
    await within(20_000, "the quick one got all", reader);
    const tookMs = performance.now() - started;
    await Promise.all(acks);
    const metrics = await (await fetch(`${http}/metrics`)).text();
    const delivered = Number(metrics.match(/events_delivered_total\{topic="t",group="slow"\} (\d+)/)?.[1]);
    const unsentMb = Number(metrics.match(/^narthex_unsent_bytes (\d+)/m)?.[1]) / 1e6;
    // The kernel's buffers and the budget of 1 MiB take some, the rest waits in the log.
    assert.ok(delivered < count, `all ${delivered} were pushed at a client that reads nothing`);
    assert.ok(unsentMb < 4, `${unsentMb} MB unsent`);
    const closed = within(
      10_000,
      "the slow one is closed",
      eventually(10_000, "closed", async () =>
        /narthex_connections 2$/m.test(await (await fetch(`${http}/metrics`)).text()),
      ),
    );
    await closed;
    (slow.socket as unknown as { _socket: { resume(): void } })._socket.resume();
    const { code, reason } = await within(5000, "close frame or end", slow.closed);
    assert.ok(code === 4408 || code === 1006, `${code}`);
    console.log(
      `measured: slow client: ${delivered} of ${count} events sent, ${unsentMb.toFixed(2)} MB unsent, closed ${code} ${reason}; the other took all in ${tookMs.toFixed(0)} ms`,
    );
    const again = await PlainClient.open(url);
    await again.subscribe("t", "slow");
    assert.is(((await again.next()).event.payload as { i: number }).i, 0, "what was not read comes again");
    await node.destroy();
  });
}
