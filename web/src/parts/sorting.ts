/** The order of rows by one of their values. */

export type Value = string | number | boolean | null | undefined;

/** The rows in order; what has no value comes last, whichever way, and equals keep their order. */
export function sortRows<T>(rows: T[], value: (row: T) => Value, descending: boolean): T[] {
  const sign = descending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    const [aMissing, bMissing] = [isMissing(a), isMissing(b)];
    if (aMissing || bMissing) return Number(aMissing) - Number(bMissing);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  });
}

function isMissing(value: Value): boolean {
  return value === null || value === undefined || Number.isNaN(value);
}
