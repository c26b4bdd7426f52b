/** Axes of values of any kind: where on it each value lies. */

export interface Axis {
  isLog: boolean;
  /** The values that are written beside it: of numbers the least and the greatest, else all. */
  ends: unknown[];
  /** The place (0..1) of a value; null for one that the axis does not have. */
  place: (value: unknown) => number | null;
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
      return size === 0 ? 0.5 : (scale(value) - scale(low)) / size;
    },
  };
}
