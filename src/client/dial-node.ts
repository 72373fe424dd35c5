// A socket of the package ws. The build for browsers has dial-browser.ts in its place.

import { type ClientOptions, WebSocket } from "ws";
import type { Dial } from "./wire.ts";

/** A peer that does not answer the close frame must not keep the process for longer. */
const options: ClientOptions & { readonly closeTimeout: number } = { perMessageDeflate: false, closeTimeout: 1000 };

/**
 * A mask keeps what is sent from looking like HTTP to a proxy on the way (RFC 6455, 10.3). Inside TLS, and within one machine, there is
 * none that could look, and masking only costs each end a pass over every byte. With a key of zero the bytes stay as they are.
 */
const unmasked: ClientOptions = { ...options, generateMask: (key) => void key.fill(0) };
const ownMachine = /^(localhost|127(\.\d+){3}|\[::1\])$/;

export const dial: Dial = (url, events) => {
  const { protocol, hostname } = new URL(url);
  const direct = protocol === "wss:" || ownMachine.test(hostname);
  const socket = new WebSocket(url, direct ? unmasked : options);
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
