/** The choice of shown columns: fields of experiments, and any metric or hyperparameter. */

import { useId, useState } from "preact/hooks";
import { get } from "../../api/client";
import { messageOf } from "../../parts/format";
import { flatten } from "../experiment/all_trials";
import { COLUMNS, VALUE_COLUMNS_MAX, sortKeys, type Experiment } from "./columns";
import { isValueColumn } from "./order";

interface Props {
  shown: string[];
  /** The experiments whose names are offered. */
  experiments: readonly Experiment[];
  onChange: (keys: string[]) => void;
}

// Names are offered of so many experiments, the first ones.
const ASKED = 3;

export function ColumnChoice({ shown, experiments, onChange }: Props) {
  const id = useId();
  const [names, setNames] = useState<string[]>([]);
  const [wanted, setWanted] = useState("");
  const [error, setError] = useState("");
  const values = shown.filter(isValueColumn);
  const isFull = values.length >= VALUE_COLUMNS_MAX;

  async function offer(event: Event): Promise<void> {
    if (!(event.currentTarget as HTMLDetailsElement).open || names.length) return;
    try {
      const lists = await Promise.all(experiments.slice(0, ASKED).map((one) => namesOf(one)));
      setNames([...new Set(lists.flat())].sort());
    } catch (failure) {
      setError(messageOf(failure));
    }
  }

  function add(event: Event): void {
    event.preventDefault();
    const key = isValueColumn(wanted) ? wanted : `metric:${wanted}`;
    if (!wanted || isFull) return;
    onChange(sortKeys([...shown, key]));
    setWanted("");
  }

  const toggle = (key: string, isShown: boolean) =>
    onChange(sortKeys(isShown ? [...shown, key] : shown.filter((one) => one !== key)));
  return (
    <details class="panel" onToggle={offer}>
      <summary>Columns</summary>
      <div class="tools" role="group" aria-label="Columns">
        {[...COLUMNS.map(({ key, title }) => [key, title] as const), ...values.map((key) => [key, key] as const)].map(([key, title]) => (
          <label key={key}>
            <input type="checkbox" checked={shown.includes(key)} onChange={(event) => toggle(key, event.currentTarget.checked)} /> {title}
          </label>
        ))}
      </div>
      <form class="tools" onSubmit={add}>
        <label>Metric or hyperparameter{" "}
          <input list={id} value={wanted} placeholder="metric:loss or hparam:lr" size={24} onInput={(event) => setWanted(event.currentTarget.value.trim())} />
        </label>
        <datalist id={id}>{names.filter((name) => !shown.includes(name)).map((name) => <option key={name} value={name} />)}</datalist>
        <button disabled={!wanted || isFull}>Add column</button>
        {isFull && <span class="quiet">A table has at most {VALUE_COLUMNS_MAX} columns of values.</span>}
        {error && <span class="failure" role="alert">{error}</span>}
      </form>
    </details>
  );
}

/** The names of the metrics and hyperparameters of an experiment, as columns. */
async function namesOf({ id, best_trial_id: best }: Experiment): Promise<string[]> {
  const [{ config }, metrics] = await Promise.all([
    get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: id! } }),
    best == null ? { items: [] } : get("/api/v1/trials/{trial_id}/metrics/names", { path: { trial_id: best } }),
  ]);
  return [
    ...metrics.items.filter(({ group }) => group === "validation").map(({ name }) => `metric:${name}`),
    ...hparamPaths(config["hyperparameters"]).map((path) => `hparam:${path}`),
  ];
}

/** The paths of a configuration's hyperparameters: a map with `type` is one of them. */
export function hparamPaths(space: unknown): string[] {
  if (typeof space !== "object" || space === null) return [];
  const plain = (value: unknown): unknown => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return 0;
    if (typeof (value as { type?: unknown }).type === "string") return 0;
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, plain(part)]));
  };
  return Object.keys(flatten(plain(space) as Record<string, unknown>));
}
