/** Keys are ordered by their bytes in UTF-8, in every store (JavaScript compares UTF-16, which differs past U+FFFF). */
export function compareKeys(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}
