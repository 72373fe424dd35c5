// The text of the frames that answer a request. EVENT frames are put together where the events are (event.ts).

import type { Failure } from "./failure.ts";
import type { Corr, OkFields } from "./frames.ts";

/** `fields` is what the request returns. */
export function okText<Op extends keyof OkFields>(corr: Corr | undefined, fields?: OkFields[Op]): string {
  return JSON.stringify({ op: "OK", corr, ...fields });
}

export function errText(failure: Failure, corr: Corr | undefined): string {
  const { code, msg, retry_after_ms } = failure;
  return JSON.stringify({ op: "ERR", code, msg, corr, retry_after_ms });
}
