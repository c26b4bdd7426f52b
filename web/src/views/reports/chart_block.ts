/** The charts of reports: what a block of a few lines says, and blocks for charts of other views. */

import { toYaml } from "../create/yaml";
import { readLines, shortWords, type Entry, type Problem, type Scalar } from "./block_lines";

/** How an option is written, and the setting of the page's charts that it stands for. */
interface Option {
  kind: "text" | "names" | "whole" | "number" | "switch" | readonly string[];
  /** Of numbers. */
  most?: number;
}

interface KindSpec {
  title: string;
  /** The most experiments of a chart. */
  many: number;
  options: Record<string, Option>;
  needs?: string;
}

const TEXT: Option = { kind: "text" };
const SWITCH: Option = { kind: "switch" };
const SCALE: Option = { kind: ["linear", "log"] };
const LENGTH: Option = { kind: "whole", most: 1e15 };

export const KINDS = {
  curves: {
    title: "Learning curves", many: 20,
    options: {
      metric: TEXT, group: TEXT, trials: { kind: "whole", most: 200 }, x: { kind: ["batches", "epochs", "records", "elapsed", "time"] },
      smooth: { kind: "number", most: 0.99 }, scale: SCALE, best: SWITCH, quantiles: SWITCH, colour: TEXT,
    },
  },
  history: { title: "Optimization history", many: 20, options: { over: { kind: ["trials", "time", "batches", "cost"] }, scale: SCALE } },
  pareto: { title: "Pareto front", many: 1, options: { against: { kind: ["time", "batches", "cost"] } } },
  scatter: { title: "Metric by hyperparameter", many: 1, options: { hyperparameter: TEXT, at: LENGTH }, needs: "hyperparameter" },
  parallel: { title: "Parallel coordinates", many: 1, options: { colour: TEXT, keep: TEXT, at: LENGTH } },
  contour: { title: "Interaction", many: 1, options: { x: TEXT, y: TEXT, plane: { kind: ["contours", "cells", "ranks"] }, at: LENGTH } },
  importance: { title: "Importance", many: 1, options: { at: LENGTH } },
  table: {
    title: "Experiments", many: 100,
    options: { columns: { kind: "names" }, sort: TEXT, order: { kind: ["desc", "asc"] } },
  },
  best: { title: "Best trial", many: 1, options: {} },
} as const satisfies Record<string, KindSpec>;

export type Kind = keyof typeof KINDS;

export interface ChartSpec {
  kind: Kind;
  title: string;
  /** The ids, in order; empty with a filter. */
  experiments: number[];
  /** A filter of the list of experiments; empty with ids. */
  filter: string;
  /** The settings of the page's charts, as addresses have them. */
  settings: Record<string, string>;
}

/** Read a block: the chart, or what is wrong with it, with the lines of the report. */
export function readChart(text: string, firstLine: number): { spec: ChartSpec | null; problems: Problem[] } {
  const { entries, problems } = readLines(text, firstLine);
  const tell = (line: number, words: string) => problems.push({ line, text: words });
  const wanted = entries.get("kind");
  const kind = typeof wanted?.value === "string" && Object.hasOwn(KINDS, wanted.value) ? (wanted.value as Kind) : null;
  if (!kind) {
    const expected = `expected \`kind:\` and one of ${Object.keys(KINDS).join(", ")}`;
    tell(wanted?.line ?? firstLine, wanted ? `no chart has the kind ${valueWords(wanted.value)}; ${expected}` : `the kind of the chart is missing; ${expected}`);
    return { spec: null, problems };
  }
  const { options, many, needs }: KindSpec = KINDS[kind];
  const spec: ChartSpec = { kind, title: "", experiments: [], filter: "", settings: {} };
  for (const [name, entry] of entries) {
    if (name === "kind") continue;
    if (name === "title" || name === "filter") spec[name] = readText(name, entry, tell);
    else if (name === "experiments") spec.experiments = readIds(entry, many, kind, tell);
    else if (Object.hasOwn(options, name)) readOption(name, options[name]!, entry, spec.settings, tell);
    else tell(entry.line, `a chart of the kind ${kind} has no option \`${name}\`; it has title, experiments, filter${Object.keys(options).map((one) => `, ${one}`).join("")}`);
  }
  if (entries.has("experiments") === entries.has("filter")) {
    const line = entries.get("filter")?.line ?? firstLine;
    tell(line, entries.has("filter") ? "expected either `experiments` or `filter`, not both; remove one" : "no experiment is named; expected `experiments: [7, 9]` or `filter: label:baseline`");
  }
  if (needs && !entries.has(needs)) tell(firstLine, `a chart of the kind ${kind} needs \`${needs}:\``);
  return { spec: problems.length ? null : spec, problems };
}

type Tell = (line: number, words: string) => void;

function readText(name: string, { line, value }: Entry, tell: Tell): string {
  const text = Array.isArray(value) ? "" : String(value);
  if (text === "" || text.length > 1000) tell(line, `\`${name}\` is ${valueWords(value)}; expected a text of 1 to 1,000 characters`);
  return text;
}

function readIds({ line, value }: Entry, many: number, kind: Kind, tell: Tell): number[] {
  const ids = Array.isArray(value) ? value : [value];
  const isId = (id: Scalar) => typeof id === "number" && Number.isInteger(id) && id > 0 && id < 1e12;
  if (ids.length === 0 || !ids.every(isId)) {
    tell(line, `\`experiments\` is ${valueWords(value)}; expected an id, or a list such as \`[7, 9]\``);
    return [];
  }
  const different = [...new Set(ids as number[])];
  if (different.length > many) tell(line, `${different.length} experiments are too many for a chart of the kind ${kind}; expected ${many === 1 ? "one" : `at most ${many}`}`);
  return different;
}

function readOption(name: string, { kind, most = Infinity }: Option, { line, value }: Entry, settings: Record<string, string>, tell: Tell): void {
  const refuse = (expected: string) => tell(line, `\`${name}\` is ${valueWords(value)}; expected ${expected}`);
  if (kind === "names") {
    const names = Array.isArray(value) ? value : [value];
    if (names.length === 0 || names.length > 40 || !names.every((one) => typeof one === "string")) refuse("up to 40 names, such as `[name, state, metric:loss]`");
    else settings[name] = JSON.stringify(names);
  } else if (kind === "switch") {
    if (typeof value !== "boolean") refuse("`true` or `false`");
    else if (value) settings[name] = "1";
  } else if (kind === "whole" || kind === "number") {
    const isFit = typeof value === "number" && value >= 0 && value <= most && (kind === "number" || (Number.isInteger(value) && value > 0));
    if (!isFit) refuse(kind === "whole" ? `a whole number${most < 1e9 ? ` from 1 to ${most}` : ""}` : `a number from 0 to ${most}`);
    else if (value !== 0) settings[name] = String(value);
  } else if (kind === "text") {
    if (Array.isArray(value) || value === "" || String(value).length > 1000) refuse("a text of 1 to 1,000 characters");
    else settings[name] = String(value);
  } else if (typeof value === "string" && kind.includes(value)) settings[name] = value;
  else refuse(`one of ${kind.join(", ")}`);
}

function valueWords(value: Entry["value"]): string {
  const text = Array.isArray(value) ? `[${value.join(", ")}]` : String(value);
  return text === "" || text === "[]" ? "empty" : `\`${shortWords(text)}\``;
}

/** A block for a chart: its lines without the fences. */
export function chartText({ kind, title, experiments, filter, settings }: ChartSpec): string {
  const [only] = experiments;
  const lines = [
    optionLine("kind", kind),
    ...(title ? [optionLine("title", title)] : []),
    filter ? optionLine("filter", filter) : `experiments: ${experiments.length === 1 ? only : `[${experiments.join(", ")}]`}`,
    ...Object.entries(settings).flatMap(([name, setting]) => settingLine(kind, name, setting) ?? []),
  ];
  return lines.join("\n");
}

/** The block as it stands in a text. */
export function fencedChart(spec: ChartSpec): string {
  return `\`\`\`chart\n${chartText(spec)}\n\`\`\``;
}

/** The block's text with other settings; null takes one out. Other lines, and comments, stay. */
export function withSettings(text: string, kind: Kind, changes: Record<string, string | null>): string {
  let lines = text.split("\n");
  for (const [name, setting] of Object.entries(changes)) {
    const line = setting === null || setting === "" ? null : settingLine(kind, name, setting);
    // An option that blocks of this kind do not have is of this visit alone.
    if (line === undefined) continue;
    const place = lines.findIndex((one) => one.startsWith(`${name}:`));
    if (place >= 0) lines = lines.flatMap((one, n) => (n === place ? line ?? [] : [one]));
    else if (line !== null) lines.push(line);
  }
  return lines.join("\n");
}

/** The line of a setting; undefined for one that charts of this kind do not keep. */
function settingLine(kind: Kind, name: string, setting: string): string | undefined {
  const options: Record<string, Option> = KINDS[kind].options;
  const option = Object.hasOwn(options, name) ? options[name]! : undefined;
  if (!option) return undefined;
  if (option.kind === "switch") return `${name}: true`;
  if (option.kind === "names") return `${name}: [${(JSON.parse(setting) as string[]).map((one) => JSON.stringify(one)).join(", ")}]`;
  return option.kind === "whole" || option.kind === "number" ? `${name}: ${setting}` : optionLine(name, setting);
}

function optionLine(name: string, value: string): string {
  return `${name}: ${toYaml(value).trimEnd()}`;
}
