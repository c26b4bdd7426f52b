/** How much of a metric each hyperparameter explains, over the trials that there are. */

export interface Sample {
  hparams: Record<string, unknown>;
  metric: number;
}

export interface Importance {
  name: string;
  /** The share (0..1) of the variance of the trials' ranks that the hyperparameter explains. */
  share: number;
}

const SAMPLES_MIN = 4;

/**
 * The hyperparameters that differ between the samples, the most important first; none for fewer
 * than four samples. A numeric one has the square of Spearman's correlation with the metric, any
 * other the correlation ratio of the metric's ranks: both count monotone effects, one at a time.
 */
export function rankImportance(samples: readonly Sample[]): Importance[] {
  if (samples.length < SAMPLES_MIN) return [];
  const metrics = ranks(samples.map((sample) => sample.metric));
  const names = new Set(samples.flatMap((sample) => Object.keys(sample.hparams)));
  const found: Importance[] = [];
  for (const name of names) {
    const values = samples.map((sample) => sample.hparams[name]);
    if (new Set(values.map((value) => JSON.stringify(value))).size < 2) continue;
    const share = values.every((value) => typeof value === "number")
      ? correlation(ranks(values as number[]), metrics) ** 2
      : correlationRatio(values.map((value) => JSON.stringify(value)), metrics);
    found.push({ name, share });
  }
  return found.sort((a, b) => b.share - a.share);
}

/** The rank of each value, 0 for the least; equal values share the mean of theirs. */
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

function correlation(one: number[], other: number[]): number {
  const [a, b] = [centered(one), centered(other)];
  const product = a.reduce((sum, value, place) => sum + value * b[place]!, 0);
  const size = Math.sqrt(squares(a) * squares(b));
  return size === 0 ? 0 : product / size;
}

function correlationRatio(groups: string[], values: number[]): number {
  const total = squares(centered(values));
  const mean = average(values);
  let between = 0;
  for (const group of new Set(groups)) {
    const own = values.filter((_, place) => groups[place] === group);
    between += own.length * (average(own) - mean) ** 2;
  }
  return total === 0 ? 0 : between / total;
}

function average(values: number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function centered(values: number[]): number[] {
  const mean = average(values);
  return values.map((value) => value - mean);
}

function squares(values: number[]): number {
  return values.reduce((sum, value) => sum + value ** 2, 0);
}
