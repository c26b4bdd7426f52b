/** The ranks of values, for colours that outliers do not squeeze. */

/** The rank of each value, 0 for the least; equal values share the mean of their ranks. */
export function ranks(values: readonly number[]): number[] {
  const order = values.map((_, place) => place).sort((a, b) => values[a]! - values[b]!);
  const found = new Array<number>(values.length);
  for (let start = 0; start < order.length; ) {
    let end = start;
    while (end + 1 < order.length && values[order[end + 1]!] === values[order[start]!]) end += 1;
    for (let place = start; place <= end; place += 1) found[order[place]!] = (start + end) / 2;
    start = end + 1;
  }
  return found;
}
