// The events of all benches: a number, the moment from which its latency counts, and padding up to the wanted size.

export interface Payload {
  readonly i: number;
  readonly t0: number;
  readonly pad: string;
}

/** Makes payloads of about so many bytes of JSON each; the two numbers take about 30 of them. */
export function payloadMaker(bytes: number): (i: number, t0: number) => Payload {
  const pad = "x".repeat(Math.max(0, bytes - 40));
  return (i, t0) => ({ i, t0: Math.round(t0 * 1000) / 1000, pad });
}

const encoder = new TextEncoder();

/** As bytes of JSON, for the thin clients. */
export function payloadBytes(payload: Payload): Uint8Array {
  return encoder.encode(JSON.stringify(payload));
}
