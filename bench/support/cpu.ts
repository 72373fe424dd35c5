// CPU time of processes and their threads, as Linux counts it: nanoseconds on a core. Times of a run move with what else the machine
// does, this hardly does.

import { readdirSync, readFileSync } from "node:fs";

/** User and system time of each thread of a process, in microseconds, by the id of the thread; the process's own id is its main thread. */
export function threadMicros(pid: number): Map<number, number> {
  const threads = new Map<number, number>();
  for (const tid of readdirSync(`/proc/${pid}/task`)) {
    const [nanos] = readFileSync(`/proc/${pid}/task/${tid}/schedstat`, "utf8").split(" ");
    threads.set(Number(tid), Number(nanos) / 1000);
  }
  return threads;
}

/** Of these processes together. */
export function processMicros(pids: readonly number[]): number {
  let sum = 0;
  for (const pid of pids) for (const micros of threadMicros(pid).values()) sum += micros;
  return sum;
}

export function mainMicros(pid: number): number {
  return threadMicros(pid).get(pid) ?? 0;
}

/** Bytes of memory that the process has in RAM. */
export function residentBytes(pid: number): number {
  const line = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"));
  return Number(line?.[1] ?? 0) * 1024;
}
