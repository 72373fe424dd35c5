// WebSocket below its messages (RFC 6455): frames that no library sends.

import { gzipSync } from "node:zlib";
import { eventually } from "../support/deadline.ts";
import type { Attack } from "./attacks.ts";
import { handshake, RawSocket, wsFrame } from "./raw-socket.ts";
import { maxFrame, type Target, token } from "./target.ts";

const auth = wsFrame(`{"op":"AUTH","token":"${token}","corr":"auth"}`);
const ping = wsFrame('{"op":"PING","corr":"ping"}');

async function opened(target: Target): Promise<RawSocket> {
  const raw = await RawSocket.webSocket(target.port);
  raw.write(auth);
  await raw.until('"corr":"auth"');
  return raw;
}

/** After these bytes the node closes with this code. */
function closes(name: string, code: number, bytes: () => Uint8Array | readonly Uint8Array[]): Attack {
  return {
    name,
    run: async (target) => {
      const raw = await opened(target);
      const given = bytes();
      for (const part of given instanceof Uint8Array ? [given] : given) raw.write(part);
      const got = await raw.closeCode();
      raw.destroy();
      if (got !== code) throw new Error(`${name}: closed with ${got}, wanted ${code}`);
    },
  };
}

/** After these bytes the connection still answers a PING. */
function goesOn(name: string, bytes: (size: number) => readonly Uint8Array[]): Attack {
  return {
    name,
    run: async (target, size) => {
      const raw = await opened(target);
      for (const part of bytes(size)) raw.write(part);
      raw.write(ping);
      const text = await raw.until('"corr":"ping"', 15_000);
      raw.destroy();
      if (!text.includes('"corr":"ping"')) throw new Error(`${name}: no answer, closed with ${await raw.closeCode()}`);
    },
  };
}

/** This handshake is refused with this status, and nothing is upgraded. */
function refusesHandshake(name: string, status: number, request: () => string): Attack {
  return {
    name,
    run: async (target) => {
      const raw = await RawSocket.open(target.port);
      raw.write(request());
      await raw.end(15_000);
      const first = raw.text().split("\r\n")[0];
      if (!first.startsWith(`HTTP/1.1 ${status} `)) throw new Error(`${name}: ${first}, wanted ${status}`);
    },
  };
}

const control = (opcode: number, data: string | Uint8Array = "") => wsFrame(data, { opcode });
const closeFrame = (code: number) => control(8, Uint8Array.of(code >> 8, code & 0xff));
const pieces = (text: string): Uint8Array[] =>
  [...text].map((char, i) => wsFrame(char, { opcode: i === 0 ? 1 : 0, fin: i === text.length - 1 }));
const offers = [
  "permessage-deflate",
  "permessage-deflate; client_max_window_bits; server_max_window_bits=8",
  "x-webkit-deflate-frame",
];

export const wireAttacks: readonly Attack[] = [
  closes("a frame over MAX_FRAME", 1009, () => wsFrame("x".repeat(maxFrame + 1))),
  closes("a frame that only says that it is over MAX_FRAME", 1009, () => wsFrame("x", { length: 2 ** 40 })),
  closes("fragments that together are over MAX_FRAME", 1009, () => [
    wsFrame("x".repeat(maxFrame), { fin: false }),
    wsFrame("xx", { opcode: 0 }),
  ]),
  closes("an unmasked frame", 1002, () => wsFrame("{}", { masked: false })),
  closes("bit RSV1 without compression", 1002, () => wsFrame(gzipSync(Buffer.alloc(1_000_000)), { rsv: 4 })),
  closes("bit RSV2", 1002, () => wsFrame("{}", { rsv: 2 })),
  closes("bit RSV3", 1002, () => wsFrame("{}", { rsv: 1 })),
  ...[3, 4, 7, 11, 15].map((opcode) => closes(`opcode ${opcode}`, 1002, () => wsFrame("{}", { opcode }))),
  closes("a text that is not UTF-8", 1007, () => wsFrame(Uint8Array.of(0x22, 0xc3, 0x28, 0x22))),
  closes("half of a surrogate pair in UTF-8", 1007, () => wsFrame(Uint8Array.of(0xed, 0xa0, 0x80))),
  closes("a control frame in fragments", 1002, () => wsFrame("x", { opcode: 9, fin: false })),
  closes("a control frame of 126 bytes", 1002, () => control(9, "x".repeat(126))),
  closes("a continuation of nothing", 1002, () => wsFrame("x", { opcode: 0 })),
  closes("a message inside a message", 1002, () => [wsFrame("x", { fin: false }), wsFrame("y")]),
  closes("a length with its highest bit set", 1009, () => {
    const frame = wsFrame("x", { length: 65_536 });
    frame[2] = 0x80;
    return frame;
  }),
  ...[0, 999, 1004, 1005, 1006, 1015, 2999, 5000].map((code) =>
    closes(`close code ${code}`, 1002, () => closeFrame(code)),
  ),
  closes("a close frame of one byte", 1002, () => control(8, "x")),
  closes("a close reason that is not UTF-8", 1007, () => control(8, Uint8Array.of(3, 232, 0xff))),
  goesOn("one message in fragments of one byte, with pings between them", (size) =>
    pieces(`{"op":"PUBLISH","topic":"h.a","payload":"${"x".repeat(300 * size)}"}`).flatMap((piece, i) =>
      i % 100 === 0 ? [piece, control(9, "p")] : [piece],
    ),
  ),
  closes("more fragments than a message may have", 1008, () => [
    wsFrame("", { fin: false }),
    Buffer.concat(Array.from({ length: 17_000 }, () => wsFrame("", { opcode: 0, fin: false }))),
  ]),
  goesOn("empty fragments", (size) => [
    wsFrame("", { fin: false }),
    ...Array.from({ length: 1000 * size }, () => wsFrame("", { opcode: 0, fin: false })),
    wsFrame("{}", { opcode: 0 }),
  ]),
  goesOn("pongs that nobody asked for", (size) =>
    Array.from({ length: 2000 * size }, () => control(10, "x".repeat(125))),
  ),
  goesOn("an AUTH that is wrong, again and again", (size) =>
    Array.from({ length: 100 * size }, () => wsFrame('{"op":"AUTH","token":"wrong"}')),
  ),
  {
    name: "a frame of one byte at a time",
    run: async (target) => {
      const raw = await opened(target);
      for (const byte of ping) raw.write(Uint8Array.of(byte));
      await raw.until('"corr":"ping"');
      raw.destroy();
      if (raw.frames().filter(({ data }) => data.includes('"ping"')).length !== 1)
        throw new Error("a PING byte by byte");
    },
  },
  {
    name: "compression is offered and not taken",
    run: async (target) => {
      for (const offer of offers) {
        const raw = await RawSocket.open(target.port);
        raw.write(`${handshake([`Sec-WebSocket-Extensions: ${offer}`])}\r\n`);
        const answer = await raw.until("\r\n\r\n");
        raw.destroy();
        if (!answer.startsWith("HTTP/1.1 101 ") || /sec-websocket-extensions/i.test(answer))
          throw new Error(`${offer}: ${answer}`);
      }
    },
  },
  {
    name: "pings by a client that reads nothing",
    run: async (target, size) => {
      const raw = await opened(target);
      raw.socket.pause();
      const many = Buffer.concat(Array.from({ length: 1000 }, () => control(9, "x".repeat(125))));
      for (let i = 0; i < 20 * size; i++) raw.write(many);
      await eventually(5000, "others are answered", async () => (await target.get("/health/live")).status === 200);
      raw.destroy();
    },
  },
  {
    name: "questions by a client that reads no answers",
    run: async (target, size) => {
      const raw = await opened(target);
      raw.socket.pause();
      const many = Buffer.concat(
        Array.from({ length: 200 }, () => wsFrame(`{"op":"${"x".repeat(50)}","corr":"${"y".repeat(100)}"}`)),
      );
      for (let i = 0; i < 30 * size; i++) raw.write(many);
      await eventually(5000, "others are answered", async () => (await target.get("/health/live")).status === 200);
      raw.destroy();
    },
  },
  {
    name: "frames before AUTH are refused and bounded",
    run: async (target) => {
      const raw = await RawSocket.webSocket(target.port);
      for (let i = 0; i < 2000; i++)
        raw.write(wsFrame('{"op":"PUBLISH","topic":"h.never","payload":1,"corr":"early"}'));
      await raw.end(15_000);
      if (raw.text().includes('"op":"OK"')) throw new Error("a frame before AUTH was taken");
      const { status } = await target.get("/topics/h.never");
      if (status !== 404) throw new Error(`a frame before AUTH made a topic: ${status}`);
    },
  },
  refusesHandshake(
    "a handshake of another version",
    400,
    () => `${handshake().replace("Version: 13", "Version: 12")}\r\n`,
  ),
  refusesHandshake("a handshake without a key", 400, () => `${handshake().replace(/Sec-WebSocket-Key.*\r\n/, "")}\r\n`),
  refusesHandshake("a handshake with a short key", 400, () => `${handshake().replace(/(Key: ).*/, "$1abc")}\r\n`),
  refusesHandshake("a handshake by POST", 405, () => `${handshake().replace("GET", "POST")}\r\n`),
  refusesHandshake(
    "an upgrade to another protocol",
    400,
    () => `${handshake().replace("Upgrade: websocket", "Upgrade: h2c")}\r\n`,
  ),
  refusesHandshake("a handshake from a foreign page", 403, () => `${handshake(["Origin: http://evil.example"])}\r\n`),
  refusesHandshake("a handshake from no origin", 403, () => `${handshake(["Origin: null"])}\r\n`),
  refusesHandshake(
    "a handshake with an origin that hides its host",
    403,
    () => `${handshake(["Origin: http://localhost@evil.example"])}\r\n`,
  ),
];
