/** Axes of values of any kind: where on it each value lies. */

import { numberText, valueText } from "../parts/format";
import { axisTicks } from "./ticks";

export interface Axis {
  isLog: boolean;
  /** The values that are written beside it: of numbers the least and the greatest, else all. */
  ends: unknown[];
  /** Numbers between the ends that are the only ones there, such as those of a choice of sizes. */
  choices?: number[];
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

/**
 * The axis of some values: numbers by size, else by text. The scale of positive numbers is logarithmic if
 * `isLog`, and over two decades.
 */
export function axisPlaces(values: unknown[], isLog = false): Axis {
  const given = values.filter((value) => value !== undefined);
  if (given.length && given.every((value) => typeof value === "number")) return numberAxis(given as number[], isLog);
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

/** A text beside an axis, at a place (0..1). */
export interface PlacedText {
  text: string;
  place: number;
}

// A choice has at most as many numbers.
const CHOICES_MAX = 8;
// Nearer to an end, a text would run into that of the end.
const TICK_ROOM = 0.1;

/** The texts beside an axis: its ends, about `count` round numbers between them, or all other values. */
export function axisTexts(axis: Axis, count: number, characters: number): PlacedText[] {
  const ends = axis.ends.map((value) => ({
    text: (typeof value === "number" ? numberText(value) : valueText(value)).slice(0, characters),
    place: axis.place(value) ?? 0,
  }));
  const [low, high] = axis.ends;
  if (axis.ends.length !== 2 || typeof low !== "number" || typeof high !== "number") return ends;
  const between = axis.choices?.map((at) => ({ at, text: numberText(at) })) ?? axisTicks(axis.isLog ? "log" : "number", low, high, count);
  const inner = between.map(({ at, text }) => ({ text, place: axis.place(at) ?? 0 }));
  return [...ends, ...inner.filter(({ place }) => place > TICK_ROOM && place < 1 - TICK_ROOM)];
}

function numberAxis(values: number[], isDeclaredLog: boolean): Axis {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isLog = low > 0 && (isDeclaredLog || high >= 100 * low);
  const scale = isLog ? Math.log : (value: number) => value;
  const size = scale(high) - scale(low);
  const choices = choicesOf(values);
  return {
    isLog,
    ends: [...new Set([low, high])],
    ...(choices && { choices }),
    place: (value) => {
      if (typeof value !== "number") return null;
      // What is below all values of a logarithmic axis may have no logarithm.
      if (isLog && value <= 0) return -1;
      return size === 0 ? 0.5 : (scale(value) - scale(low)) / size;
    },
    value: (place) => (isLog ? low * (high / low) ** place : low + place * (high - low)),
  };
}

/** The numbers in order, if they are few and each occurs twice on average; else null. */
export function choicesOf(values: readonly number[]): number[] | null {
  const distinct = [...new Set(values)];
  return distinct.length <= CHOICES_MAX && 2 * distinct.length <= values.length ? distinct.sort((a, b) => a - b) : null;
}
