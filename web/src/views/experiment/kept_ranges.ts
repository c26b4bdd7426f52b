/** The parts of axes that are kept, as an address has them. */

import type { AxisRange } from "../../curves/axes";

/** The ranges by name; none where the text is no list of them, as of a link that was cut off. */
export function readRanges(text: string | null): Map<string, AxisRange> {
  let read: unknown;
  try {
    read = JSON.parse(text ?? "[]");
  } catch {
    return new Map();
  }
  if (!Array.isArray(read)) return new Map();
  const entries = (read as unknown[]).filter((one): one is [string, unknown, unknown] => Array.isArray(one) && one.length === 3 && typeof one[0] === "string");
  return new Map(entries.map(([name, low, high]) => [name, [low, high]]));
}

/** The text of ranges; null for none. */
export function writeRanges(ranges: ReadonlyMap<string, AxisRange>): string | null {
  return ranges.size ? JSON.stringify([...ranges].map(([name, [low, high]]) => [name, shortNumber(low), shortNumber(high)])) : null;
}

function shortNumber(value: unknown): unknown {
  return typeof value === "number" ? Number(value.toPrecision(6)) : value;
}
