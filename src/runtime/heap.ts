// A binary heap of what happens at a time: the earliest first, and of those of one moment the one that was entered first.

export interface Timed {
  readonly at: number;
  readonly order: number;
}

function before(a: Timed, b: Timed): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order);
}

export function push<Entry extends Timed>(heap: Entry[], entry: Entry): void {
  let at = heap.length;
  heap.push(entry);
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if (!before(entry, heap[parent])) break;
    heap[at] = heap[parent];
    at = parent;
  }
  heap[at] = entry;
}

/** The first; there must be one. */
export function pop<Entry extends Timed>(heap: Entry[]): Entry {
  const top = heap[0];
  const last = heap.pop()!;
  if (heap.length === 0) return top;
  let at = 0;
  for (;;) {
    let child = 2 * at + 1;
    if (child >= heap.length) break;
    if (child + 1 < heap.length && before(heap[child + 1], heap[child])) child++;
    if (!before(heap[child], last)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = last;
  return top;
}
