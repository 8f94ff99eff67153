/** The first position in 0..length whose `key` is at least `wanted`; keys ascend. */
export function lowerBound(length: number, key: (position: number) => number, wanted: number): number {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (key(middle) < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}
