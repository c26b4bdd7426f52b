/** Ticks of an axis: round places, with texts that show each place exactly. */

import { durationText } from "../parts/format";

export interface Tick {
  at: number;
  text: string;
}

/** How an axis is scaled and labelled. Times are in seconds. */
export type AxisKind = "number" | "log" | "elapsed" | "time";

/** The ticks between two values, about `count` of them. */
export function axisTicks(kind: AxisKind, low: number, high: number, count: number): Tick[] {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [];
  if (kind === "log") return logTicks(low, high, count).map((at) => ({ at, text: exactNumber(at) }));
  if (kind === "number") {
    const places = linearTicks(low, high, count);
    const texts = tickTexts(places);
    return places.map((at, n) => ({ at, text: texts[n]! }));
  }
  const step = timeStep(low, high, count);
  const places = kind === "time" ? dayTicks(low, high, step) : stepTicks(low, high, step);
  return places.map((at) => ({ at, text: kind === "time" ? clockText(at, step) : elapsedText(at) }));
}

/** Multiples of 1, 2 or 5 times a power of ten. */
export function linearTicks(low: number, high: number, count: number): number[] {
  if (high < low) return [];
  if (high === low) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const first = [1, 2, 5, 10].findIndex((one) => one * power >= rough * (1 - 1e-9));
  // A single tick would not show the scale of a narrow chart.
  const steps = [10, 5, 2, 1, 0.5].slice(first < 0 ? 0 : 3 - first).map((factor) => stepTicks(low, high, factor * power));
  return steps.find((ticks) => ticks.length > 1) ?? steps[0]!;
}

/** Powers of ten; over less than two decades also 2 and 5 times these. */
export function logTicks(low: number, high: number, count: number): number[] {
  if (low <= 0 || high < low) return [];
  const [first, last] = [Math.floor(Math.log10(low) + 1e-9), Math.ceil(Math.log10(high) - 1e-9)];
  const every = Math.max(1, Math.ceil((last - first) / Math.max(1, count)));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const ticks: number[] = [];
  for (let power = first; power <= last; power += every) {
    for (const factor of factors) ticks.push(Number(`${factor}e${power}`));
  }
  const within = ticks.filter((at) => at >= low * (1 - 1e-9) && at <= high * (1 + 1e-9));
  return within.length >= 2 ? within : linearTicks(low, high, count).filter((at) => at > 0);
}

/** The numbers with as many decimals as the most exact number needs: `0.0125` stays `0.0125`. */
export function tickTexts(values: readonly number[]): string[] {
  const largest = Math.max(...values.map(Math.abs), 0);
  if (largest >= 1e6 || (largest > 0 && largest < 1e-4)) return values.map(exactNumber);
  const decimals = Math.max(0, ...values.map(decimalsOf));
  return values.map((value) => (value === 0 ? "0" : value.toFixed(decimals)));
}

/** The shortest text of a number to 12 digits, with an exponent for very large and small numbers. */
export function exactNumber(value: number): string {
  const short = Number(value.toPrecision(12));
  const size = Math.abs(short);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return short.toExponential().replace("e+", "e");
  return String(short);
}

function decimalsOf(value: number): number {
  return /\.(\d+)$/.exec(exactNumber(value))?.[1]?.length ?? 0;
}

function stepTicks(low: number, high: number, step: number): number[] {
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  // A product of a whole number and a rounded step has digits that nobody wants to read.
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, n) => Number(((first + n) * step).toPrecision(12)));
}

const [MINUTE, HOUR, DAY] = [60, 3600, 86_400];
const TIME_STEPS = [1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY];

function timeStep(low: number, high: number, count: number): number {
  const rough = (high - low) / Math.max(1, count);
  return TIME_STEPS.find((step) => step >= rough) ?? Math.ceil(rough / (28 * DAY)) * 28 * DAY;
}

/** Ticks that are round in the reader's time zone. */
function dayTicks(low: number, high: number, step: number): number[] {
  const shift = new Date(low * 1000).getTimezoneOffset() * MINUTE;
  return stepTicks(low - shift, high - shift, step).map((at) => at + shift);
}

function clockText(seconds: number, step: number): string {
  const time = new Date(seconds * 1000);
  const isMidnight = time.getHours() === 0 && time.getMinutes() === 0 && time.getSeconds() === 0;
  if (step >= DAY || isMidnight) return time.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  const [hours, minutes, rest] = [time.getHours(), time.getMinutes(), time.getSeconds()].map((part) => String(part).padStart(2, "0"));
  return step < MINUTE ? `${hours}:${minutes}:${rest}` : `${hours}:${minutes}`;
}

/** A duration without its zeros: `2 h` instead of `2 h 0 min`. */
function elapsedText(seconds: number): string {
  if (seconds > 0 && seconds < 1) return `${exactNumber(seconds)} s`;
  return durationText(seconds * 1000).replace(/ 0 (s|min|h)$/, "");
}
