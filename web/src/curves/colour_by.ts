/** Curves coloured by the metric of their trials, or by a hyperparameter. */

import { valueText } from "../parts/format";
import { axisPlaces } from "./axes";
import type { Curve, Fact, Paint } from "./curve";
import { metricScale } from "./rung_places";

/** A curve of a trial. */
export interface TrialCurve extends Curve {
  /** The trial's hyperparameters by their paths. */
  hparams?: Record<string, unknown>;
  /** The trial's best value of the metric that its search compares trials by. */
  metric?: number | null;
  /** Whether less of that metric is better; true by default. */
  isLess?: boolean;
  /** Curves with the same text belong together, such as those of an experiment. */
  group?: string;
  /** The hyperparameters whose scale is logarithmic. */
  logs?: readonly string[];
}

/** The colouring of curves, with what explains the colours. */
export interface Colouring {
  /** A paint for each curve; undefined for the colour of the curve's place. */
  paints: (Paint | undefined)[];
  /** The ends of the scale, weakest colour first. */
  scale?: { low: unknown; high: unknown; isLog: boolean };
  /** The values that have a colour each. */
  groups?: string[];
}

export const BY_METRIC = "metric";
export const BY_GROUP = "group";
/** What an address has before the name of a hyperparameter. */
export const BY_HPARAM = "hp.";
// Grey, for curves without a value.
const NO_VALUE: Paint = { group: 7 };

/** The names of hyperparameters whose values differ between the curves. */
export function namesToColourBy(curves: readonly TrialCurve[]): string[] {
  const known = curves.map(({ hparams }) => hparams ?? {});
  const names = new Set(known.flatMap((hparams) => Object.keys(hparams)));
  return [...names].filter((name) => new Set(known.map((hparams) => JSON.stringify(hparams[name]))).size > 1);
}

/** The colouring `by` a metric, a group or a hyperparameter; without any, each curve has its own colour. */
export function colouringOf(curves: readonly TrialCurve[], by: string | null): Colouring {
  if (by === BY_METRIC) return byMetric(curves, curves[0]?.isLess ?? true);
  if (by === BY_GROUP) return byGroups(curves.map(({ group }) => group));
  const name = by?.startsWith(BY_HPARAM) ? by.slice(BY_HPARAM.length) : null;
  if (name === null || !curves.some(({ hparams }) => hparams && name in hparams)) return { paints: curves.map(({ paint }) => paint) };
  return byValues(curves.map(({ hparams }) => hparams?.[name]), curves.some(({ logs }) => logs?.includes(name)));
}

function byMetric(curves: readonly TrialCurve[], smallerIsBetter: boolean): Colouring {
  const metrics = curves.flatMap(({ metric }) => (typeof metric === "number" ? [metric] : []));
  const scale = metricScale(metrics, smallerIsBetter);
  if (!scale) return { paints: curves.map(() => NO_VALUE) };
  const paints = curves.map(({ metric }): Paint => (typeof metric === "number" ? { scale: scale.place(metric) } : NO_VALUE));
  return { paints, scale: { low: scale.worst, high: scale.best, isLog: false } };
}

function byValues(values: readonly unknown[], isLog: boolean): Colouring {
  const axis = axisPlaces([...values], isLog);
  const isNumeric = axis.ends.length > 0 && axis.ends.every((end) => typeof end === "number");
  if (!isNumeric) return byGroups(values.map((value) => (value === undefined ? undefined : valueText(value))));
  const paints = values.map((value): Paint => {
    const place = axis.place(value);
    return place === null ? NO_VALUE : { scale: place };
  });
  return { paints, scale: { low: axis.ends[0], high: axis.ends.at(-1), isLog: axis.isLog } };
}

function byGroups(texts: readonly (string | undefined)[]): Colouring {
  const groups = [...new Set(texts.flatMap((text) => (text === undefined ? [] : [text])))];
  groups.sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  return { paints: texts.map((text): Paint => (text === undefined ? NO_VALUE : { group: groups.indexOf(text) })), groups };
}

/** The given hyperparameters of a trial as facts for a tip. */
export function factsOf(hparams: Record<string, unknown>, names: readonly string[]): Fact[] {
  return names.flatMap((name): Fact[] => (name in hparams ? [[name, valueText(hparams[name])]] : []));
}
