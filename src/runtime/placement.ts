// Which worker a shard lives on. Nothing of it is stored, so another number of workers needs no migration.

export function workerOf(shard: number, workers: number): number {
  return shard % workers;
}

export function shardsOf(worker: number, shards: number, workers: number): number[] {
  const own: number[] = [];
  for (let shard = worker; shard < shards; shard += workers) own.push(shard);
  return own;
}
