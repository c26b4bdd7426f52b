/** Hyperparameters and configurations side by side, with what differs marked. */

import type { ExperimentWhole } from "../../api/answers";
import { valueText } from "../../parts/format";
import { Empty } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { setQuery, useRoute } from "../../shell/router";
import { differingNames, flatten } from "../experiment/all_trials";
import type { Compared } from "./load_compared";

interface Row {
  field: string;
  values: unknown[];
  differs: boolean;
}

/** Every hyperparameter, a column for each trial; what differs is first, and marked. */
export function HyperparameterTable({ compared }: { compared: Compared[] }) {
  const isShort = useRoute().query.get("same") === "hidden";
  const flat = compared.map(({ trial }) => flatten(trial.hparams));
  const differing = new Set(differingNames(flat));
  const names = [...new Set(flat.flatMap((one) => Object.keys(one)))].sort();
  const rows = names
    .map((field): Row => ({ field, values: flat.map((one) => one[field]), differs: differing.has(field) }))
    .sort((a, b) => Number(b.differs) - Number(a.differs));
  const shown = isShort ? rows.filter(({ differs }) => differs) : rows;
  return (
    <>
      <h2>Hyperparameters</h2>
      <div class="tools">
        <label>
          <input type="checkbox" checked={isShort} onChange={(event) => setQuery({ same: event.currentTarget.checked ? "hidden" : null })} /> Only differences
        </label>
        <span class="quiet">{differing.size} of {names.length} differ</span>
      </div>
      {shown.length === 0 ? <Empty>{names.length ? "No hyperparameter differs." : "The trials have no hyperparameters."}</Empty> : (
        <Table label="hyperparameters" rows={shown} rowKey={({ field }) => field} columns={[
          { key: "field", title: "Hyperparameter", show: ({ field }) => <code>{field}</code>, value: ({ field }) => field },
          { key: "differs", title: "Differs", show: ({ differs }) => (differs ? <strong class="differs">differs</strong> : <span class="quiet">same</span>), value: ({ differs }) => differs },
          ...compared.map(({ trial }, n): Column<Row> => ({
            key: `trial ${trial.id}`,
            title: `Trial ${trial.id}`,
            show: ({ values, differs }) => <Value value={values[n]} differs={differs} />,
          })),
        ]} />
      )}
    </>
  );
}

function Value({ value, differs }: { value: unknown; differs: boolean }) {
  const text = value === undefined ? "–" : valueText(value);
  return differs ? <strong class="differs">{text}</strong> : <>{text}</>;
}

/** The fields in which the experiments' configurations differ, a column each. */
export function ConfigDifferences({ experiments }: { experiments: ExperimentWhole[] }) {
  const flat = experiments.map(({ config }) => withoutNulls(flatten(config)));
  const rows = differingNames(flat).sort().map((field) => ({ field, values: flat.map((one) => one[field]) }));
  if (rows.length === 0) return <p class="quiet">The configurations are equal.</p>;
  return (
    <>
      <h2>Differences of the configurations</h2>
      <Table label="differences of the configurations" rows={rows} rowKey={({ field }) => field}
        columns={[
          { key: "field", title: "Field", show: ({ field }) => <code>{field}</code>, value: ({ field }) => field },
          ...experiments.map(({ id }, n): Column<(typeof rows)[number]> => ({
            key: `experiment ${id}`,
            title: `Experiment ${id}`,
            show: ({ values }) => (values[n] === undefined ? "–" : valueText(values[n])),
          })),
        ]} />
    </>
  );
}

/** Without what is null: a field that is not there says the same. */
function withoutNulls(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));
}
