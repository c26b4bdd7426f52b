/** How much of the metric's variance each hyperparameter explains, with the range of the trees. */

import { countText } from "../../parts/format";
import { Table, type Column } from "../../parts/table";
import { lengthText, type Importance } from "./length_results";

type Item = Importance["items"][number];

const [WIDTH, HEIGHT] = [220, 16];

export function ImportancePart({ importance }: { importance: Importance }) {
  const { items, metric, trials, at, unit, note, interactions, explained } = importance;
  return (
    <section aria-label="importance">
      <h2>Importance</h2>
      {note && <p role="note" class={items.length ? "bad" : "quiet"}>{note}</p>}
      {items.length > 0 && at !== null && (
        <>
          <Table label="importance" rows={items} rowKey={({ name }) => name} columns={COLUMNS} />
          <p class="quiet">
            The share of the variance of {metric} that each hyperparameter explains alone, over {countText(trials, "trial")} at{" "}
            {lengthText(at, unit)}: fANOVA with a forest of regression trees, and the range of 80 % of the trees. Only together,
            several hyperparameters explain {percentText(interactions ?? 0)}. The forest predicts{" "}
            {percentText(Math.max(0, explained ?? 0))} of the variance in trials that it has not seen.
          </p>
        </>
      )}
    </section>
  );
}

function Bar({ share, low, high }: Item) {
  const x = (value: number) => 1 + value * (WIDTH - 2);
  return (
    <svg class="share" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
      <rect class="whole" x={1} y={3} width={WIDTH - 2} height={HEIGHT - 6} />
      <rect x={1} y={3} width={share * (WIDTH - 2)} height={HEIGHT - 6} />
      <path d={`M${x(low)} ${HEIGHT / 2}H${x(high)}M${x(low)} 5V${HEIGHT - 5}M${x(high)} 5V${HEIGHT - 5}`} />
    </svg>
  );
}

const COLUMNS: Column<Item>[] = [
  { key: "name", title: "Hyperparameter", show: ({ name }) => <span class="breaks">{name}</span>, value: ({ name }) => name },
  { key: "share", title: "Importance", isNumber: true, show: ({ share }) => percentText(share), value: ({ share }) => share },
  { key: "range", title: "Range", show: ({ low, high }) => `${percentText(low)} to ${percentText(high)}` },
  { key: "bar", title: "", show: (item) => <Bar {...item} /> },
];

function percentText(share: number): string {
  return `${Math.round(100 * share)} %`;
}
