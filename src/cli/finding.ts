// What doctor found out about one thing: whether it is well, and a sentence that says what to do where it is not.

export type Status = "ok" | "warn" | "FAIL";

export interface Finding {
  readonly status: Status;
  /** What was looked at. */
  readonly check: string;
  readonly text: string;
}

export function ok(check: string, text: string): Finding {
  return { status: "ok", check, text };
}

export function warn(check: string, text: string): Finding {
  return { status: "warn", check, text };
}

export function fail(check: string, text: string): Finding {
  return { status: "FAIL", check, text };
}
