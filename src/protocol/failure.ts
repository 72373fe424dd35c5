// Every refusal a client can see. A failure crosses threads and sockets as this plain record, never as an Error: classes
// and custom fields are lost when posted. PROTOCOL.md documents each code and a test compares the two lists.

export interface CodeFacts {
  /** Whether the same request may succeed later without being changed. */
  readonly retryable: boolean;
  /** The HTTP status of a response that carries the code. */
  readonly status: number;
}

export const codes = {
  bad_json: { retryable: false, status: 400 },
  bad_frame: { retryable: false, status: 400 },
  bad_topic: { retryable: false, status: 400 },
  bad_group: { retryable: false, status: 400 },
  bad_option: { retryable: false, status: 400 },
  too_large: { retryable: false, status: 413 },
  unauthorized: { retryable: false, status: 401 },
  bad_token: { retryable: false, status: 401 },
  forbidden: { retryable: false, status: 403 },
  rate_limited: { retryable: true, status: 429 },
  overloaded: { retryable: true, status: 503 },
  unavailable: { retryable: true, status: 503 },
  limit: { retryable: false, status: 409 },
  internal: { retryable: false, status: 500 },
  publish_failed: { retryable: true, status: 503 },
  already_subscribed: { retryable: false, status: 409 },
  not_subscribed: { retryable: false, status: 409 },
  unknown_topic: { retryable: false, status: 404 },
  unknown_id: { retryable: false, status: 404 },
  lease_lost: { retryable: false, status: 409 },
  ack_failed: { retryable: true, status: 503 },
  group_conflict: { retryable: false, status: 409 },
  shutting_down: { retryable: true, status: 503 },
} as const satisfies Record<string, CodeFacts>;

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
