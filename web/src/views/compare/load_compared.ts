/** What is compared: trials, each with its experiment and with the curves of the chosen metrics. */

import type { ExperimentWhole } from "../../api/answers";
import { get, type Schemas } from "../../api/client";

export interface Metric {
  group: string;
  name: string;
}

export interface Compared {
  trial: Schemas["Trial"];
  experiment: ExperimentWhole;
}

/** What is compared, with its curves. */
export interface Drawn extends Compared {
  /** Of each chosen metric; of none that was chosen, what its search goes by. */
  curves: { metric: Metric; points: unknown[][] }[];
  startedMs: number | null | undefined;
}

export const COMPARED_MAX = 50;
/** Charts beside each other. */
export const METRICS_MAX = 12;

/** The best trials of experiments, and trials. */
export async function loadCompared(experiments: number[], trials: number[], signal: AbortSignal): Promise<Compared[]> {
  // Many trials may be of one experiment, which is asked for once.
  const asked = new Map<number, Promise<ExperimentWhole>>();
  const experimentOf = (id: number) => {
    const answer = asked.get(id) ?? get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: id }, signal });
    asked.set(id, answer);
    return answer;
  };
  const bests = (await Promise.all(experiments.map(experimentOf))).map(({ best_trial_id: best }) => best);
  const ids = [...new Set([...bests.filter((best) => best != null), ...trials])].slice(0, COMPARED_MAX);
  return Promise.all(ids.map(async (id): Promise<Compared> => {
    const trial = await get("/api/v1/trials/{trial_id}", { path: { trial_id: id }, signal });
    return { trial, experiment: await experimentOf(trial.experiment_id) };
  }));
}

/** Their curves of these metrics, without any of what the search of each goes by; with the times of points. */
export async function loadCurves(compared: Compared[], metrics: Metric[], times: boolean, signal: AbortSignal): Promise<Drawn[]> {
  return Promise.all(compared.map(async ({ trial, experiment }): Promise<Drawn> => {
    const path = { trial_id: trial.id };
    const chosen = metrics.length ? metrics : [{ group: "validation", name: experiment.metric }];
    const groups = [...new Set(chosen.map(({ group }) => group))];
    const answers = await Promise.all(groups.map((group) => {
      const name = chosen.filter((metric) => metric.group === group).map((metric) => metric.name);
      return get("/api/v1/trials/{trial_id}/metrics/series", { path, query: { group, name, points: 500, times: times || null }, signal });
    }));
    const series = answers.flatMap((answer) => answer.series);
    const curves = chosen.map((metric) => ({
      metric,
      points: series.find((one) => one.group === metric.group && one.name === metric.name)?.points ?? [],
    }));
    return { trial, experiment, curves, startedMs: answers[0]?.started_ms };
  }));
}

/** The metrics that an address names: several as JSON, or one by its group and name. */
export function readMetrics(query: URLSearchParams): Metric[] {
  const [group, name] = [query.get("group"), query.get("metric")];
  const several = readList(query.get("metrics"));
  if (several.length) return several;
  return group && name ? [{ group, name }] : [];
}

/** What keeps these metrics in an address; one of them as links had it before there were several. */
export function metricsQuery(metrics: readonly Metric[]): Record<string, string | null> {
  const [first] = metrics;
  if (metrics.length > 1) return { group: null, metric: null, metrics: JSON.stringify(metrics.map(({ group, name }) => [group, name])) };
  return { group: first?.group ?? null, metric: first?.name ?? null, metrics: null };
}

/** A metric of the text of `metricText`; null for any other text. */
export function readMetric(text: string | null): Metric | null {
  return readList(text === null ? null : `[${text}]`)[0] ?? null;
}

export function metricText({ group, name }: Metric): string {
  return JSON.stringify([group, name]);
}

export function metricTitle({ group, name }: Metric): string {
  return `${group}: ${name}`;
}

function readList(text: string | null): Metric[] {
  let value: unknown;
  try {
    value = JSON.parse(text ?? "[]");
  } catch {
    return [];
  }
  if (!Array.isArray(value)) return [];
  const metrics = value.flatMap((one: unknown) => {
    if (!Array.isArray(one) || one.length !== 2) return [];
    const [group, name] = one as unknown[];
    return typeof group === "string" && group && typeof name === "string" ? [{ group, name }] : [];
  });
  const known = new Map(metrics.map((metric) => [metricText(metric), metric]));
  return [...known.values()].slice(0, METRICS_MAX);
}
