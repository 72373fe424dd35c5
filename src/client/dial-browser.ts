// The browser's own socket, also that of other runtimes that have one. It says nothing of why a connection failed.

import type { Dial } from "./wire.ts";

interface Socket {
  binaryType: string;
  readonly bufferedAmount: number;
  onopen: (() => void) | null;
  onmessage: ((message: { readonly data: string | ArrayBuffer }) => void) | null;
  onclose: ((close: { readonly code: number; readonly reason: string }) => void) | null;
  send(frame: string | Uint8Array): void;
  close(code?: number): void;
}

declare const WebSocket: new (url: string) => Socket;

export const dial: Dial = (url, events) => {
  const socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => events.opened();
  socket.onmessage = ({ data }) => (typeof data === "string" ? events.text(data) : events.binary(new Uint8Array(data)));
  socket.onclose = ({ code, reason }) => events.closed(code, reason);
  return {
    send: (frame) => socket.send(frame),
    close: () => socket.close(1000),
    get unsent() {
      return socket.bufferedAmount;
    },
  };
};
