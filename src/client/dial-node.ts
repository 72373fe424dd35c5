// A socket of the package ws. The build for browsers has dial-browser.ts in its place.

import { type ClientOptions, WebSocket } from "ws";
import type { Dial } from "./wire.ts";

/** A peer that does not answer the close frame must not keep the process for longer. */
const options: ClientOptions & { readonly closeTimeout: number } = { perMessageDeflate: false, closeTimeout: 1000 };

export const dial: Dial = (url, events) => {
  const socket = new WebSocket(url, options);
  let reason = "";
  socket.on("open", () => events.opened());
  socket.on("message", (data: Buffer, isBinary: boolean) =>
    isBinary ? events.binary(data) : events.text(data.toString()),
  );
  // `close` follows every error.
  socket.on("error", (error: NodeJS.ErrnoException) => {
    reason = error.code ?? error.message;
  });
  socket.on("close", (code, text) => events.closed(code, text.length > 0 ? text.toString() : reason));
  return {
    send: (frame) => socket.send(frame),
    close: () => (socket.readyState === WebSocket.CONNECTING ? socket.terminate() : socket.close(1000)),
    get unsent() {
      return socket.bufferedAmount;
    },
  };
};
