// Every bound on what a client may say, in one place; PROTOCOL.md lists them and a test compares.

/** What a publisher may attach to an event. */
export const eventBounds = {
  keyBytesMax: 1024,
  sidCharsMax: 128,
  headersMax: 64,
  headerNameCharsMax: 128,
  headerValueCharsMax: 4096,
  tagsMax: 64,
  tagCharsMax: 128,
  causedByMax: 64,
  /** The last moment that a Date can name. */
  tsMax: 8_640_000_000_000_000,
  /** All of sid, headers, tags and caused_by as one JSON text in UTF-8. */
  metaBytesMax: 65_536,
} as const;

// By themselves as well: they are all that a client needs of the table below.
export const reasonCharsMax = 1024;
export const nestingMax = 64;
export const latestKeysMax = 1000;

/** Numbers and lists in frames and in options of a subscription. None is computed, or a bundle for browsers could not leave them out. */
export const frameBounds = {
  corrCharsMax: 128,
  tokenCharsMax: 8192,
  leaseCharsMax: 128,
  reasonCharsMax,
  nestingMax,
  ackTimeoutMsMin: 100,
  ackTimeoutMsMax: 86_400_000,
  extendMsMin: 1,
  extendMsMax: 86_400_000,
  /** Seven days. */
  delayMsMax: 604_800_000,
  maxInflightMax: 10_000,
  batchSizeMax: 10_000,
  maxAttemptsMax: 1000,
  backoffStepsMax: 32,
  latestKeysMax,
  afterCharsMax: 4096,
} as const;
