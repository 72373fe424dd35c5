// The rules for names that come from outside. A fault is a sentence for the client; undefined means the name is fine.

export const topicCharsMax = 200;
export const groupCharsMax = 100;
export const eventIdCharsMax = 128;

const deadLetterSegment = "dlq";
/** `<topic>.dlq.<group>` of the longest names; only our own topics may be this long. */
export const ourTopicCharsMax = topicCharsMax + deadLetterSegment.length + 2 + groupCharsMax;

/**
 * What a client may name when it reads: its own topics and ours. Making and publishing also need `isOurs` to be false; see
 * `publishTopicFault`.
 */
export function topicFault(name: unknown): string | undefined {
  if (typeof name !== "string") return "topic must be a string";
  if (name.length > topicCharsMax && (name.length > ourTopicCharsMax || !isOurs(name)))
    return `topic has ${name.length} characters, allowed are 1 to ${topicCharsMax}`;
  return segmentsFault(name, "topic", name.charCodeAt(0) === dollar ? 1 : 0);
}

/** What a client may make or publish to. */
export function publishTopicFault(name: unknown): string | undefined {
  const fault = topicFault(name);
  if (fault !== undefined) return fault;
  return isOurs(name as string)
    ? "topics that start with $ or have the segment dlq are written by the node alone"
    : undefined;
}

export function groupFault(name: unknown): string | undefined {
  if (typeof name !== "string") return "group must be a string";
  if (name.length > groupCharsMax) return `group has ${name.length} characters, allowed are 1 to ${groupCharsMax}`;
  return segmentsFault(name, "group", 0);
}

/** An id that a publisher brings, or that a client names. */
export function eventIdFault(id: unknown): string | undefined {
  if (typeof id !== "string") return "id must be a string";
  if (id.length === 0 || id.length > eventIdCharsMax)
    return `id has ${id.length} characters, allowed are 1 to ${eventIdCharsMax}`;
  for (let i = 0; i < id.length; i++) {
    const char = id.charCodeAt(i);
    if (!isNameChar(char) && char !== dot) return "id may have A-Z a-z 0-9 . _ : - only";
  }
  return undefined;
}

export function deadLetterTopic(topic: string, group: string): string {
  return `${topic}.${deadLetterSegment}.${group}`;
}

/** The other way: whose dead letters the topic holds, or would hold. */
export function deadLetterSource(name: string): { readonly topic: string; readonly group: string } | undefined {
  const at = name.indexOf(`.${deadLetterSegment}.`);
  if (at < 0) return undefined;
  const topic = name.slice(0, at);
  const group = name.slice(at + deadLetterSegment.length + 2);
  return publishTopicFault(topic) === undefined && groupFault(group) === undefined ? { topic, group } : undefined;
}

/** Whether a well-formed topic is one that only the node writes: it starts with `$` or has the segment `dlq`. */
export function isOurs(topic: string): boolean {
  if (topic.charCodeAt(0) === dollar) return true;
  for (let at = topic.indexOf(deadLetterSegment); at >= 0; at = topic.indexOf(deadLetterSegment, at + 1)) {
    const end = at + deadLetterSegment.length;
    if ((at === 0 || topic.charCodeAt(at - 1) === dot) && (end === topic.length || topic.charCodeAt(end) === dot)) {
      return true;
    }
  }
  return false;
}

const dot = 0x2e;
const dollar = 0x24;

/** Segments of one character or more, with a dot between two. */
function segmentsFault(name: string, what: string, from: number): string | undefined {
  let empty = true;
  for (let i = from; i < name.length; i++) {
    const char = name.charCodeAt(i);
    if (char === dot) {
      if (empty) return `${what} has an empty segment`;
      empty = true;
    } else if (isNameChar(char)) {
      empty = false;
    } else {
      return `${what} may have A-Z a-z 0-9 _ : - in segments with dots between them only`;
    }
  }
  if (name.length === from) return `${what} is empty`;
  return empty ? `${what} has an empty segment` : undefined;
}

/** A-Z a-z 0-9 _ : - */
function isNameChar(char: number): boolean {
  return (
    (char >= 0x61 && char <= 0x7a) ||
    (char >= 0x30 && char <= 0x3a) ||
    (char >= 0x41 && char <= 0x5a) ||
    char === 0x5f ||
    char === 0x2d
  );
}
