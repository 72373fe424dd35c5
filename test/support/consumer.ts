// The consuming half of the client over real sockets: a subscriber, and a loop that makes its connection again.

import { clientClock } from "../../src/client/clock.ts";
import { Connection } from "../../src/client/connection.ts";
import { dial } from "../../src/client/dial-node.ts";
import { ClosedError } from "../../src/client/errors.ts";
import { Subscriber } from "../../src/client/subscriber.ts";
import { pause } from "./deadline.ts";

export interface ConsumerHere {
  readonly subscriber: Subscriber;
  /** What no subscription was told. */
  readonly errors: Error[];
  /** Ends the connection; the next one is made by itself. */
  cut(): void;
  destroy(): void;
}

export async function openConsumer(url: string): Promise<ConsumerHere> {
  const clock = clientClock();
  const errors: Error[] = [];
  const subscriber = new Subscriber({ clock, requestTimeoutMs: 15_000, onError: (error) => void errors.push(error) });
  let live: Connection | undefined;
  let over = false;
  const open = async (): Promise<void> => {
    const connection = await new Connection({
      dial,
      url,
      token: undefined,
      clock,
      openMs: 5000,
      silentMs: 20_000,
      answerMs: 20_000,
      onLost: () => {
        live = undefined;
        subscriber.lost();
        void again();
      },
      onEnded: (topic, group, why) => subscriber.ended(topic, group, why),
    }).opened;
    if (over) return connection.close();
    live = connection;
    subscriber.connected(connection);
  };
  const again = async (): Promise<void> => {
    while (live === undefined && !over) {
      try {
        await open();
      } catch (error) {
        // The node is away: it comes back.
        if (!(error instanceof Error)) throw error;
        await pause(20);
      }
    }
  };
  await open();
  return {
    subscriber,
    errors,
    cut: () => live?.close("cut by the test"),
    destroy: () => {
      over = true;
      subscriber.fail(new ClosedError("closed", "the test is over"));
      live?.close();
    },
  };
}
