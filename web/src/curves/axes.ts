/** Axes of values of any kind: where on it each value lies. */

export interface Axis {
  isLog: boolean;
  /** The values that are written beside it: of numbers the least and the greatest, else all. */
  ends: unknown[];
  /** The place (0..1) of a value; null for one that the axis does not have. */
  place: (value: unknown) => number | null;
  /** The value at a place: of what is no number the nearest one. */
  value: (place: number) => unknown;
}

/** The part of an axis from one of its values to another. */
export type AxisRange = readonly [low: unknown, high: unknown];

/** Whether a value is within a part of its axis; one that the axis does not have is not. */
export function isWithin(axis: Axis, [low, high]: AxisRange, value: unknown): boolean {
  const place = axis.place(value);
  if (place === null) return false;
  return place >= (axis.place(low) ?? 0) - 1e-9 && place <= (axis.place(high) ?? 1) + 1e-9;
}

/** The axis of some values: numbers by size, on a logarithmic scale over two decades; else by text. */
export function axisPlaces(values: unknown[]): Axis {
  const given = values.filter((value) => value !== undefined);
  if (given.length && given.every((value) => typeof value === "number")) return numberAxis(given as number[]);
  const kinds = [...new Map(given.map((value) => [JSON.stringify(value), value])).entries()];
  kinds.sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
  const places = new Map(kinds.map(([text], n) => [text, kinds.length > 1 ? n / (kinds.length - 1) : 0.5]));
  return {
    isLog: false,
    ends: kinds.map(([, value]) => value),
    place: (value) => places.get(JSON.stringify(value)) ?? null,
    value: (place) => kinds[Math.round(Math.min(1, Math.max(0, place)) * (kinds.length - 1))]?.[1],
  };
}

function numberAxis(values: number[]): Axis {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isLog = low > 0 && high >= 100 * low;
  const scale = isLog ? Math.log : (value: number) => value;
  const size = scale(high) - scale(low);
  return {
    isLog,
    ends: [...new Set([low, high])],
    place: (value) => {
      if (typeof value !== "number") return null;
      // What is below all values of a logarithmic axis may have no logarithm.
      if (isLog && value <= 0) return -1;
      return size === 0 ? 0.5 : (scale(value) - scale(low)) / size;
    },
    value: (place) => (isLog ? low * (high / low) ** place : low + place * (high - low)),
  };
}
