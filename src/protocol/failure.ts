// Every refusal a client can see. A failure crosses threads and sockets as this plain record, never as an Error: classes
// and custom fields are lost when posted. PROTOCOL.md documents each code and a test compares the two lists.

/** Whether the same request may succeed later without being changed. New codes go to the end: a batch names them by their place. */
export const codes = {
  bad_json: false,
  bad_frame: false,
  bad_topic: false,
  bad_group: false,
  bad_option: false,
  too_large: false,
  unauthorized: false,
  bad_token: false,
  forbidden: false,
  rate_limited: true,
  overloaded: true,
  unavailable: true,
  limit: false,
  internal: false,
  publish_failed: true,
  already_subscribed: false,
  not_subscribed: false,
  unknown_topic: false,
  unknown_id: false,
  lease_lost: false,
  ack_failed: true,
  group_conflict: false,
  shutting_down: true,
} as const satisfies Record<string, boolean>;

export type Code = keyof typeof codes;

export interface Failure {
  readonly code: Code;
  readonly msg: string;
  readonly retry_after_ms?: number;
}

export function failure(code: Code, msg: string, retryAfterMs?: number): Failure {
  return retryAfterMs === undefined ? { code, msg } : { code, msg, retry_after_ms: retryAfterMs };
}

export function isFailure(value: unknown): value is Failure {
  return (
    typeof value === "object" && value !== null && "code" in value && "msg" in value && (value as Failure).code in codes
  );
}

export function isRetryable({ code }: Failure): boolean {
  return codes[code];
}
