// Time, chance and turns of the event loop, in Node and in a browser. The only file of the client that knows the real ones.

export interface Timer {
  cancel(): void;
}

export interface ClientClock {
  /** Milliseconds that never step back. */
  mono(): number;
  /** `background` timers do not keep a process alive. */
  after(ms: number, run: () => void, background?: boolean): Timer;
  /** Once this turn of the event loop is over. */
  soon(run: () => void): void;
  /** From 0 to below 1. */
  random(): number;
  /** So many random bytes in hex. */
  nonce(bytes: number): string;
}

const timeoutMsMax = 2 ** 31 - 1;

export function clientClock(): ClientClock {
  return {
    mono: monotonic(),
    after(ms, run, background) {
      const timer = setTimeout(run, Math.min(Math.max(ms, 0), timeoutMsMax)) as number | { unref(): void };
      if (background && typeof timer === "object") timer.unref();
      return { cancel: () => clearTimeout(timer as number) };
    },
    soon: turnEnd(),
    random: () => Math.random(),
    nonce(bytes) {
      let text = "";
      for (const byte of crypto.getRandomValues(new Uint8Array(bytes))) text += (byte + 0x100).toString(16).slice(1);
      return text;
    },
  };
}

/**
 * A machine that slept has not counted the time, and what was sent before must then be known to be old: the wall clock tells, forward
 * only. Steps below a second are its rounding and its corrections.
 */
function monotonic(): () => number {
  let ahead = Date.now() - performance.now();
  let slept = 0;
  return () => {
    const now = performance.now();
    const step = Date.now() - now - ahead;
    if (step > 1000) slept += step;
    if (step > 1000 || step < 0) ahead += step;
    return now + slept;
  };
}

interface PageTurns {
  readonly setImmediate?: (run: () => void) => unknown;
  readonly MessageChannel: new () => {
    readonly port1: { onmessage: (() => void) | null };
    readonly port2: { postMessage(message: null): void };
  };
}

/** In a browser a message to oneself: timers are held back there, by milliseconds in a nest and by a second in a hidden tab. */
function turnEnd(): (run: () => void) => void {
  const { setImmediate, MessageChannel } = globalThis as unknown as PageTurns;
  if (setImmediate !== undefined) return (run) => void setImmediate(run);
  const { port1, port2 } = new MessageChannel();
  const queue: (() => void)[] = [];
  port1.onmessage = () => queue.shift()?.();
  return (run) => {
    queue.push(run);
    port2.postMessage(null);
  };
}
