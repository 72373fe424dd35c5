/** A token bucket: so many at once, and so many a second in the long run. */
export interface Rate {
  readonly burst: number;
  readonly perSec: number;
}
