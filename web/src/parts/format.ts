/** Numbers, times and sizes as people read them. */

import { exactText } from "../api/exact_json";

export function numberText(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return String(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3);
  return String(Number(value.toPrecision(5)));
}

export function dollarsText(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return `$${value !== 0 && Math.abs(value) < 0.01 ? value.toPrecision(2) : value.toFixed(2)}`;
}

export function bytesText(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (bytes >= 1024 && power < units.length - 1) {
    bytes /= 1024;
    power += 1;
  }
  return `${power ? bytes.toFixed(1) : bytes} ${units[power]}`;
}

/** A length of time in its two largest units: `3 h 5 min`. */
export function durationText(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// Made once: each `toLocaleString` with options makes one of its own, which costs more than a table's cell.
const moments: Record<string, Intl.DateTimeFormat> = {};
let times: Intl.DateTimeFormat | undefined;

/** A moment in the reader's time zone, in their language, without the present year; a brief moment has no seconds. */
export function momentText(ms: number, isBrief = false): string {
  const isThisYear = new Date(ms).getFullYear() === new Date().getFullYear();
  const format = moments[`${isThisYear} ${isBrief}`] ??= new Intl.DateTimeFormat(undefined, {
    month: "short", day: "numeric", hour: "numeric", minute: "2-digit", ...(!isThisYear && { year: "numeric" }), ...(!isBrief && { second: "2-digit" }),
  });
  return format.format(ms);
}

/** The time of day of a moment in the reader's time zone: `18:03:59`. */
export function timeText(ms: number): string {
  times ??= new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  return times.format(ms);
}

export function valueText(value: unknown): string {
  if (typeof value === "number") return numberText(value);
  return typeof value === "string" ? value : exactText(value);
}

/** The text, of at most so many characters and what says that it has more. */
export function shortText(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** So many of something: `1 trial`, `2 trials`. */
export function countText(count: number, one: string, several = `${one}s`): string {
  return `${count} ${count === 1 ? one : several}`;
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

interface Steps {
  steps_completed: number;
  target_steps: number | null;
  target_epochs: number | null;
  epochs_completed: number | null;
}

/** The batches that a trial has trained, and its target: batches, or epochs that only the trial can convert. */
export function stepsText({ steps_completed: done, target_steps: batches, target_epochs: epochs, epochs_completed: epochsDone }: Steps): string {
  if (epochs !== null) return `${done} (${Math.round(10 * (epochsDone ?? 0)) / 10} of ${countText(epochs, "epoch")})`;
  return batches === null ? String(done) : `${done} of ${batches}`;
}
