// A stream is one partition of one incarnation of a topic, named by a single number so that stores and threads need to know
// nothing of topics: topic ids are counted up by the catalog and never reused, so a deleted topic's streams never match again.

export const partitionsMax = 64;

export function streamOf(topicId: number, partition: number): number {
  return topicId * partitionsMax + partition;
}

export function topicIdOf(stream: number): number {
  return Math.floor(stream / partitionsMax);
}

export function partitionOf(stream: number): number {
  return stream % partitionsMax;
}
