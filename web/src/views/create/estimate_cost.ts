/** What slot-time costs where a pool's instances have prices. */

interface Priced {
  slot_price_per_hour: number | null;
}

/**
 * The dollars that so many seconds of slots cost on the instances of the cheapest slots; null where
 * none has a price.
 */
export function slotCost(slotSeconds: number, offerings: readonly Priced[]): number | null {
  const prices = offerings.flatMap(({ slot_price_per_hour: price }) => (price === null ? [] : [price]));
  return prices.length ? (slotSeconds / 3600) * Math.min(...prices) : null;
}

interface Measured {
  unit: string;
  cost_per_unit: number | null;
}

/** The dollars of a length of training at a measured cost; null without a cost, or if it was measured in another unit. */
export function measuredCost(units: number, unit: string, pace: Measured | null): number | null {
  return pace && pace.cost_per_unit !== null && pace.unit === unit ? units * pace.cost_per_unit : null;
}

interface Simulated {
  units: number;
  slots_per_trial: number;
  slot_seconds: number;
  makespan_seconds: number;
}

/**
 * An estimate in which all trials have the measured pace. The simulation varies the speed of trials, which is
 * a guess about other hyperparameters; the whole time of the slots is measured.
 */
export function atPace<E extends Simulated>(estimate: E, secondsPerUnit: number): E {
  const slotSeconds = estimate.units * secondsPerUnit * estimate.slots_per_trial;
  if (!estimate.slot_seconds) return estimate;
  return { ...estimate, slot_seconds: slotSeconds, makespan_seconds: (estimate.makespan_seconds * slotSeconds) / estimate.slot_seconds };
}

const UNITS: Record<string, string> = { batches: "batch", records: "record", epochs: "epoch", steps: "step" };

/** The name of one of a unit of length: `batch` for `batches`. */
export function unitText(unit: string): string {
  return UNITS[unit] ?? unit;
}
