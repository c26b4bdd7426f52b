/** The replacements of a pool: the sums by cause and phase, and the latest as bars. */

import { get, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { countText } from "../../parts/format";
import { causeText, phaseName, phaseText } from "../../parts/phases";
import { ReplacementBars } from "../../parts/replacements";
import { Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";

const DAYS = 30;

const COLUMNS: Column<Schemas["PhaseSum"]>[] = [
  { key: "phase", title: "Phase", show: ({ phase }) => phaseName(phase) },
  { key: "count", title: "Count", isNumber: true, show: ({ count }) => count },
  { key: "median", title: "Median", isNumber: true, show: ({ median_ms: ms }) => phaseText(ms) },
  { key: "p90", title: "90 % within", isNumber: true, show: ({ p90_ms: ms }) => phaseText(ms) },
];

export function PoolReplacements({ name, mark }: { name: string; mark: string }) {
  const live = useLive(
    `replacements ${name}`,
    (signal) =>
      get("/api/v1/resource-pools/{resource_pool}/replacements", {
        path: { resource_pool: name },
        query: { days: DAYS },
        signal,
      }),
    () => "still",
    mark,
  );
  return (
    <Shown live={live}>
      {({ causes, latest, is_cut: isCut }) => latest.length === 0 ? null : (
        <details>
          <summary>Replacements in the last {DAYS} days</summary>
          {causes.map((sum) => (
            <section key={sum.cause} aria-label={`replacements ${causeText(sum.cause)}`}>
              <h2>{countText(sum.count, "replacement")} {causeText(sum.cause)}</h2>
              {sum.unmeasured > 0 && <p class="quiet">{sum.unmeasured} more without a report of the first step.</p>}
              <Table label={`phases ${causeText(sum.cause)}`} rows={sum.phases} rowKey={({ phase }) => phase} columns={COLUMNS} />
            </section>
          ))}
          {isCut && <p class="quiet">Only the latest 1,000 replacements are summed.</p>}
          <h2>Latest</h2>
          <ReplacementBars replacements={latest} title={({ trial_id: id }) => <a href={href("trials", id)}>Trial {id}</a>} />
        </details>
      )}
    </Shown>
  );
}
