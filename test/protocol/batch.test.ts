import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  type BatchName,
  batchCorr,
  type ClientBatch,
  decodeClientBatch,
  decodeServerBatch,
  encodePublish,
  encodePublished,
  encodeSettle,
  eventsFrameBytes,
  eventsHeaderBytes,
  type SettleBatch,
  writeEventsFrame,
  writePublishHeader,
} from "../../src/protocol/batch.ts";
import { type Code, codes, failure, isFailure } from "../../src/protocol/failure.ts";
import { offsetMax } from "../../src/protocol/ids.ts";
import { encodePack, PackView, packHeaderBytes } from "../../src/protocol/pack.ts";
import { bytesOf, bytesOfHex, hexOf, textOf } from "./bytes.ts";

const limits = { maxPayload: 100, batchEventsMax: 50 };
const batch = { producer: "000102030405060708090a0b0c0d0e0f", seq: 0xfffffffe };
const pack = encodePack([
  { payload: bytesOf("1"), id: "h" },
  { payload: bytesOf('"é"'), key: "k", id: "i", ts: 7, meta: '{"sid":"s"}' },
]);
const settle: Omit<SettleBatch, "op"> = {
  handle: 0x0102,
  corr: 0x03040506,
  verb: "nack",
  ms: 1000,
  runs: [
    { partition: 2, offset: 5, count: 3, epoch: 9, token: 100 },
    { partition: 63, offset: offsetMax - 1, count: 2, epoch: 0xffffffff, token: Number.MAX_SAFE_INTEGER - 1 },
  ],
};

function decoded(bytes: Uint8Array): ClientBatch {
  const outcome = decodeClientBatch(bytes, limits);
  if (isFailure(outcome)) throw new Error(outcome.msg);
  return outcome;
}

function refused(bytes: Uint8Array): { code: Code; msg: string } {
  const outcome = decodeClientBatch(bytes, limits);
  if (!isFailure(outcome)) throw new Error("was accepted");
  return outcome;
}

/** A frame that was read, written again. */
function encoded(frame: ClientBatch): Uint8Array {
  if (frame.op === "SETTLE") return encodeSettle(frame);
  const { bytes, at, byteLength } = frame.pack;
  return encodePublish(frame, bytes.subarray(at, at + byteLength));
}

test("PUBLISH in hex", () => {
  const one = encodePack([{ payload: bytesOf("1") }]);
  const packHex = "01000000 00000000 01000000 00000000 01000000 31";
  const name = "000102030405060708090a0b0c0d0e0f feffffff";
  const cases: [BatchName | undefined, string][] = [
    [undefined, `01 00 0201 06050403 ${packHex}`],
    [batch, `01 01 0201 06050403 ${name} 0000 0000 ${packHex}`],
    [{ ...batch, partition: 0 }, `01 01 0201 06050403 ${name} 0100 0000 ${packHex}`],
    [{ ...batch, partition: 63, chained: true }, `01 03 0201 06050403 ${name} 4000 0000 ${packHex}`],
  ];
  for (const [given, hex] of cases) {
    const header = { handle: 0x0102, corr: 0x03040506, ...(given === undefined ? {} : { batch: given }) };
    assert.is(hexOf(encodePublish(header, one)), hexOf(bytesOfHex(hex)));
    const frame = decoded(bytesOfHex(hex));
    if (frame.op !== "PUBLISH") throw new Error(frame.op);
    assert.equal([frame.handle, frame.corr, frame.pack.count], [0x0102, 0x03040506, 1]);
    assert.is(textOf(frame.pack.payload(0)), "1");
    assert.equal(frame.batch, given);
  }
});

test("a header written over another leaves nothing of it", () => {
  const frame = encodePublish({ handle: 7, corr: 8, batch: { ...batch, partition: 63, chained: true } }, pack);
  const fresh = { handle: 1, corr: 2, batch: { producer: "ff".repeat(16), seq: 0, partition: 1 } };
  writePublishHeader(fresh, frame);
  assert.is(hexOf(frame), hexOf(encodePublish(fresh, pack)));
});

test("SETTLE in hex", () => {
  const bytes = bytesOfHex(`
    02 01 0201 06050403 e8030000 02000000
    0200 0000 03000000 0000000000001440 09000000 00000000 0000000000005940
    3f00 0000 02000000 f0ffffffffff0f43 ffffffff 00000000 feffffffffff3f43`);
  assert.is(hexOf(encodeSettle(settle)), hexOf(bytes));
  assert.equal(decoded(bytes), { op: "SETTLE", ...settle });
  const runs = settle.runs.slice(0, 1);
  const flags = (["ack", "nack", "extend", "release"] as const).map((verb) =>
    hexOf(encodeSettle({ handle: 1, corr: 2, verb, runs }).subarray(0, 12)).replaceAll(" ", ""),
  );
  assert.equal(
    flags,
    ["00", "01", "02", "03"].map((flag) => `02${flag}010002000000ffffffff`),
  );
});

test("PUBLISHED in hex", () => {
  const runs = [
    { index: 0, count: 2, partition: 1, offset: 7, storedAt: 1000, salt: 3 },
    { index: 2, count: 1, partition: 0, offset: 4, storedAt: 500, salt: 0x3fff, duplicate: { ts: 1 } },
    {
      index: 3,
      count: 1,
      partition: 2,
      offset: 0,
      storedAt: 0,
      salt: 0,
      failure: failure("rate_limited", "slow down", 1.5),
    },
  ];
  const bytes = bytesOfHex(`
    11 00 0300 44332211
    00000000 02000000 0100 0000 00000000 0000000000001c40 0000000000408f40 0300 0000 00000000
    02000000 01000000 0000 0100 00000000 0000000000001040 000000000000f03f ff3f 0000 00000000
    03000000 01000000 0200 0b00 02000000 0000000000000000 0000000000000000 0000 0000 00000000`);
  assert.is(hexOf(encodePublished(0x11223344, runs)), hexOf(bytes));
  assert.equal(decodeServerBatch(bytes), {
    op: "PUBLISHED",
    corr: 0x11223344,
    runs: [
      { index: 0, count: 2, partition: 1, offset: 7, storedAt: 1000, salt: 3, status: "stored", retryAfterMs: 0 },
      {
        index: 2,
        count: 1,
        partition: 0,
        offset: 4,
        storedAt: 1,
        salt: 0x3fff,
        status: "duplicate",
        retryAfterMs: 0,
      },
      { index: 3, count: 1, partition: 2, offset: 0, storedAt: 0, salt: 0, status: "rate_limited", retryAfterMs: 2 },
    ],
  });
});

test("the number of a code on the wire never changes", () => {
  assert.equal(Object.keys(codes).slice(0, 23), [
    ..."bad_json bad_frame bad_topic bad_group bad_option too_large unauthorized bad_token forbidden".split(" "),
    ..."rate_limited overloaded unavailable limit internal publish_failed already_subscribed".split(" "),
    ..."not_subscribed unknown_topic unknown_id lease_lost ack_failed group_conflict shutting_down".split(" "),
  ]);
  for (const [place, code] of (Object.keys(codes) as Code[]).entries()) {
    const run = { index: 0, count: 1, partition: 0, offset: 0, storedAt: 0, salt: 0, failure: failure(code, "") };
    const bytes = encodePublished(1, [run]);
    assert.is(new DataView(bytes.buffer).getUint16(18, true), 2 + place);
    const frame = decodeServerBatch(bytes);
    assert.ok(!isFailure(frame) && frame.op === "PUBLISHED" && frame.runs[0].status === code);
  }
  const unknown = encodePublished(1, [{ index: 0, count: 1, partition: 0, offset: 0, storedAt: 0, salt: 0 }]);
  new DataView(unknown.buffer).setUint16(18, 999, true);
  const frame = decodeServerBatch(unknown);
  assert.ok(!isFailure(frame) && frame.op === "PUBLISHED" && frame.runs[0].status === "internal");
});

const eventsHeader = {
  handle: 0x0102,
  ackDeadlineMs: 30_000,
  partition: 5,
  salt: 6,
  attempt: 1,
  maxAttempts: 5,
  firstOffset: 2 ** 40,
  storedAt: 1000,
  epoch: 9,
  token: 100,
};

test("EVENTS in hex, from the middle of a pack into the middle of a buffer", () => {
  const view = new PackView(encodePack(["1", "22", "333"].map((text) => ({ payload: bytesOf(text) }))));
  const target = new Uint8Array(100).fill(0xff);
  const size = eventsFrameBytes(view, 1, 3);
  assert.is(writeEventsFrame(eventsHeader, view, 1, 3, target, 4), size);
  const frame = target.slice(4, 4 + size);
  assert.is(
    hexOf(frame),
    hexOf(
      bytesOfHex(`
        12 00 0201 30750000 0500 0600 0100 0500 0000000000007042 0000000000408f40 09000000 00000000 0000000000005940
        02000000 00000000 05000000 00000000 02000000 03000000 3232333333`),
    ),
  );
  assert.equal([target[3], target[4 + size]], [0xff, 0xff]);
  const events = decodeServerBatch(frame);
  if (isFailure(events) || events.op !== "EVENTS") throw new Error("not EVENTS");
  const { pack: read, op, ...header } = events;
  assert.equal(header, eventsHeader);
  assert.equal([textOf(read.payload(0)), textOf(read.payload(1)), op], ["22", "333", "EVENTS"]);
});

const clientFrames = [
  encodePublish({ handle: 1, corr: 2 }, pack),
  encodePublish({ handle: 1, corr: 2, batch }, pack),
  encodePublish({ handle: 1, corr: 2, batch: { ...batch, partition: 5, chained: true } }, pack),
  encodeSettle(settle),
  encodeSettle({ handle: 1, corr: 2, verb: "ack", runs: settle.runs }),
  encodeSettle({ handle: 1, corr: 2, verb: "extend", ms: 5000, runs: settle.runs }),
  encodeSettle({ handle: 1, corr: 2, verb: "release", runs: settle.runs }),
];

test("a frame that is cut short or too long is refused, whole frames come back as they were", () => {
  for (const bytes of clientFrames) {
    assert.is(hexOf(encoded(decoded(bytes))), hexOf(bytes));
    for (let length = 0; length < bytes.length; length++) {
      assert.is(refused(bytes.subarray(0, length)).code, "bad_frame", `${length} of ${bytes.length}`);
    }
    assert.is(refused(new Uint8Array([...bytes, 0])).code, "bad_frame");
  }
});

test("a frame with any one byte changed is refused or means exactly what it says", () => {
  let accepted = 0;
  for (const good of clientFrames) {
    for (let at = 0; at < good.length; at++) {
      for (let value = 0; value < 256; value++) {
        const bytes = good.slice();
        bytes[at] = value;
        const outcome = decodeClientBatch(bytes, limits);
        if (isFailure(outcome)) continue;
        accepted++;
        assert.is(hexOf(encoded(outcome)), hexOf(bytes), `byte ${at}`);
      }
    }
  }
  assert.ok(accepted > 1000);
});

test("server frames with any one byte changed never throw", () => {
  const view = new PackView(pack);
  const events = new Uint8Array(eventsFrameBytes(view, 0, 2));
  writeEventsFrame(eventsHeader, view, 0, 2, events, 0);
  const published = encodePublished(1, [{ index: 0, count: 2, partition: 1, offset: 7, storedAt: 1000, salt: 3 }]);
  for (const good of [events, published]) {
    assert.not(isFailure(decodeServerBatch(good)));
    for (let length = 0; length < good.length; length++) {
      assert.ok(isFailure(decodeServerBatch(good.subarray(0, length))), `${length}`);
    }
    for (let at = 0; at < good.length; at++) {
      for (const value of [0, 1, 0x7f, 0x80, 0xff]) {
        const bytes = good.slice();
        bytes[at] = value;
        const outcome = decodeServerBatch(bytes);
        if (isFailure(outcome) || outcome.op === "PUBLISHED") continue;
        for (let i = 0; i < outcome.pack.count; i++) {
          assert.ok(outcome.pack.payload(i).length === outcome.pack.payloadLength(i));
          outcome.pack.extension(i);
        }
      }
    }
  }
});

function eventsFrame(entries: Parameters<typeof encodePack>[0]): { frame: Uint8Array; lengths: DataView } {
  const view = new PackView(encodePack(entries));
  const frame = new Uint8Array(eventsFrameBytes(view, 0, entries.length));
  writeEventsFrame(eventsHeader, view, 0, entries.length, frame, 0);
  return { frame, lengths: new DataView(frame.buffer, eventsHeaderBytes + packHeaderBytes) };
}

test("lengths of payloads that add up only modulo 2^32 are refused by a client", () => {
  const { frame, lengths } = eventsFrame([{ payload: bytesOf("1") }, { payload: bytesOf("2") }]);
  lengths.setUint32(0, 0xffffffff, true);
  lengths.setUint32(4, 3, true);
  assert.ok(isFailure(decodeServerBatch(frame)));
});

test("an extension that ends behind the frame is refused by a client, which reads nothing of it there", () => {
  const { frame, lengths } = eventsFrame([
    { payload: bytesOf("1"), meta: '{"sid":"s"}' },
    { payload: bytesOf("2"), key: "k" },
  ]);
  // The second one begins with the last byte now, which says that a key comes next.
  lengths.setUint32(8, lengths.getUint32(8, true) + 3, true);
  frame[frame.length - 1] = 1;
  assert.ok(isFailure(decodeServerBatch(frame)));
});

test("each rule of the binary frames is held", () => {
  const publish = (change: (view: DataView) => void, base = clientFrames[1]) => {
    const bytes = base.slice();
    change(new DataView(bytes.buffer));
    return refused(bytes);
  };
  assert.match(refused(bytesOfHex("03 00 0000 00000000")).msg, /unknown binary op 3/);
  assert.match(publish((view) => view.setUint8(1, 4)).msg, /flags/);
  assert.match(publish((view) => view.setUint8(1, 2)).msg, /chained without a producer/);
  assert.match(publish((view) => view.setUint8(1, 3)).msg, /chained without a partition/);
  assert.match(publish((view) => view.setUint16(28, 65, true)).msg, /partition 64/);
  assert.match(publish((view) => view.setUint16(30, 1, true)).msg, /zero/);
  for (const ids of [
    [undefined, "i"],
    ["i", undefined],
    ["i", "j", undefined],
  ]) {
    const mixed = encodePack(
      ids.map((id) => ({ payload: bytesOf("1"), ...(id === undefined ? { key: "k" } : { id }) })),
    );
    assert.match(refused(encodePublish({ handle: 1, corr: 1, batch }, mixed)).msg, /an id in each event or in none/);
    decoded(encodePublish({ handle: 1, corr: 1 }, mixed));
  }
  assert.is(
    refused(encodePublish({ handle: 1, corr: 1 }, encodePack([{ payload: new Uint8Array(101) }]))).code,
    "too_large",
  );
  const many = encodePack(Array.from({ length: 51 }, () => ({ payload: bytesOf("1") })));
  assert.match(refused(encodePublish({ handle: 1, corr: 1 }, many)).msg, /51 events, allowed are 1 to 50/);

  const run = settle.runs[0];
  const spoilt = (over: Partial<typeof run>, ms?: number, verb: SettleBatch["verb"] = "nack") =>
    refused(
      encodeSettle({ handle: 1, corr: 1, verb, runs: [{ ...run, ...over }], ...(ms === undefined ? {} : { ms }) }),
    );
  assert.match(refused(encodeSettle({ handle: 1, corr: 1, verb: "ack", runs: [] })).msg, /0 runs/);
  const full = Array.from({ length: 50 }, () => ({ ...run, count: 1 }));
  decoded(encodeSettle({ handle: 1, corr: 1, verb: "ack", runs: full }));
  assert.match(refused(encodeSettle({ handle: 1, corr: 1, verb: "ack", runs: [...full, ...full] })).msg, /100 runs/);
  decoded(encodeSettle({ handle: 1, corr: 1, verb: "ack", runs: [{ ...run, count: 50 }] }));
  decoded(encodeSettle({ handle: 1, corr: 1, verb: "extend", ms: 86_400_000, runs: full }));
  decoded(encodeSettle({ handle: 1, corr: 1, verb: "nack", ms: 604_800_000, runs: full }));
  assert.match(spoilt({}, 86_400_001, "extend").msg, /1 to 86400000/);
  assert.match(spoilt({ count: 0 }).msg, /no lease/);
  assert.match(spoilt({ count: 51 }).msg, /more than 50/);
  assert.match(spoilt({ partition: 64 }).msg, /partition 64/);
  for (const offset of [-1, 0.5, Number.NaN, Number.POSITIVE_INFINITY, offsetMax - 1]) {
    assert.match(spoilt({ offset }).msg, /offset/, `${offset}`);
  }
  for (const token of [-1, 0.5, Number.NaN, Number.MAX_SAFE_INTEGER]) assert.match(spoilt({ token }).msg, /token/);
  assert.match(spoilt({}, 604_800_001).msg, /604800000/);
  for (const verb of ["ack", "release"] as const) assert.match(spoilt({}, 1, verb).msg, /delay/);
  assert.match(spoilt({}, 0, "extend").msg, /1 to 86400000/);
  assert.match(spoilt({}, undefined, "extend").msg, /1 to 86400000/);
  const both = encodeSettle(settle);
  both[1] = 4;
  assert.match(refused(both).msg, /flags/);
});

test("what an event of a batch carries is checked as in a text frame", () => {
  const publish = (entry: Parameters<typeof encodePack>[0][number]) =>
    refused(encodePublish({ handle: 1, corr: 1 }, encodePack([{ payload: bytesOf("1") }, entry])));
  const payload = bytesOf("1");
  const cases: [{ code: Code; msg: string }, RegExp][] = [
    [publish({ payload, key: "" }), /event 1: key/],
    [publish({ payload, key: "k".repeat(1025) }), /event 1: key/],
    [publish({ payload, id: "a b" }), /event 1: id/],
    [publish({ payload, ts: -1 }), /event 1: ts/],
    [publish({ payload, ts: Number.NaN }), /event 1: ts/],
    [publish({ payload, meta: "{" }), /event 1: meta is not JSON/],
    [publish({ payload, meta: '{"sid": "s"}' }), /event 1: meta must be spelled/],
    [publish({ payload, meta: '{"tags":["a"],"sid":"s"}' }), /event 1: meta must be spelled/],
    [publish({ payload, meta: '{"x":1}' }), /event 1: meta has the unknown member "x"/],
  ];
  for (const [{ code, msg }, wanted] of cases) {
    assert.is(code, "bad_option");
    assert.match(msg, wanted);
  }
  const bytes = encodePublish({ handle: 1, corr: 1 }, encodePack([{ payload, key: "kk" }]));
  bytes[bytes.length - 1] = 0xff;
  assert.match(refused(bytes).msg, /not UTF-8/);
});

test("the corr of a broken frame is found where there is one", () => {
  assert.is(batchCorr(bytesOfHex("99 00 0000 04030201")), 0x01020304);
  assert.is(batchCorr(bytesOfHex("99 00 0000 040302")), undefined);
});

test.run();
