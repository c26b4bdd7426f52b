/** What the search would train, computed by the cluster when it is asked to. */

import { useState } from "preact/hooks";
import { get, send, type Schemas } from "../../api/client";
import { countText, dollarsText, durationText, messageOf, numberText } from "../../parts/format";
import { Table, type Column } from "../../parts/table";
import { setQuery, useRoute } from "../../shell/router";
import { atPace, measuredCost, slotCost, unitText } from "./estimate_cost";

interface Found {
  config: string;
  preview: Schemas["SearchPreview"];
  pool: Schemas["ResourcePoolWhole"];
}

interface Props {
  config: string;
  /** The pool of the experiment; null while the configuration is not valid. */
  pool: string | null;
  /** The measured pace of the original; null if it is not known. */
  pace: Pace | null;
}

type Pace = Schemas["Pace"];

export function PreviewPart({ config, pool, pace }: Props) {
  const { query } = useRoute();
  const measured = pace?.seconds_per_unit ? String(pace.seconds_per_unit) : "1";
  const [slots, seconds] = [query.get("slots") ?? "", query.get("seconds") ?? measured];
  const [found, setFound] = useState<Found | null>(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);

  async function preview(): Promise<void> {
    setBusy(true);
    setError("");
    try {
      const whole = await get("/api/v1/resource-pools/{resource_pool}", { path: { resource_pool: pool! } });
      const body = { config, slots: Number(slots) || whole.slots || 1, seconds_per_unit: Number(seconds) };
      const preview = await send("post", "/api/v1/search-previews", { body });
      const isMeasured = pace?.unit === preview.unit && seconds === measured && preview.estimate;
      const estimate = isMeasured ? atPace(preview.estimate!, Number(seconds)) : preview.estimate;
      setFound({ config, pool: whole, preview: { ...preview, estimate } });
    } catch (failure) {
      setFound(null);
      setError(messageOf(failure));
    }
    setBusy(false);
  }

  return (
    <section aria-label="preview" aria-live="polite">
      <h2>Preview</h2>
      <form class="tools" onSubmit={(event) => { event.preventDefault(); void preview(); }}>
        <label>Slots{" "}
          <input type="number" min="1" max="10000" placeholder="the pool's" value={slots}
            onInput={(event) => setQuery({ slots: event.currentTarget.value })} />
        </label>
        <label>Seconds per unit of length{" "}
          <input type="number" min="0.000001" max="10000000" step="any" required value={seconds}
            onChange={(event) => setQuery({ seconds: event.currentTarget.value })} />
        </label>
        <button disabled={busy || pool === null}>{busy ? "Previewing …" : "Preview"}</button>
      </form>
      {pace && <PaceText pace={pace} />}
      {error && <p class="failure" role="alert">{error}</p>}
      {found && (
        <>
          {found.config !== config && <p class="failure" role="note">The configuration has changed since this preview.</p>}
          <Training preview={found.preview} />
          <Estimate preview={found.preview} pool={found.pool} pace={pace} />
        </>
      )}
    </section>
  );
}

type Row = Schemas["PreviewedRung"] & { bracket: number };

function Training({ preview }: { preview: Found["preview"] }) {
  const { brackets, unit, trials, units, batches } = preview;
  const rows = brackets.flatMap(({ rungs }, place) => rungs.map((rung): Row => ({ ...rung, bracket: place + 1 })));
  const isExpected = preview.is_example && rows.every(({ expected }) => expected !== null);
  return (
    <>
      <p>
        {preview.searcher}: {countText(trials, "trial")}{brackets.length > 1 && ` in ${brackets.length} brackets`}, {numberText(units)} {unit} in
        all{batches !== null && unit !== "batches" && ` (${numberText(batches)} batches)`}.
      </p>
      {preview.is_example && (
        <p class="quiet">This example assigns metric i to trial i. In a real search the results decide which trials continue.</p>
      )}
      {isExpected && (
        <p class="quiet">
          Expected counts assume that one in `divisor` trials continues:{" "}
          {numberText(rows.reduce((sum, { expected, length }) => sum + (expected ?? 0) * length, 0))} {unit} in all.
        </p>
      )}
      <Table label="training by length" rows={rows} rowKey={({ bracket, length }) => `${bracket} ${length}`}
        columns={columns(unit, brackets.length > 1, isExpected)} />
    </>
  );
}

function columns(unit: string, several: boolean, isExpected: boolean): Column<Row>[] {
  const bracket: Column<Row> = { key: "bracket", title: "Bracket", isNumber: true, show: (rung) => rung.bracket, value: (rung) => rung.bracket };
  const expected: Column<Row> = { key: "expected", title: "Expected", isNumber: true, show: (rung) => numberText(rung.expected), value: (rung) => rung.expected };
  return [
    ...(several ? [bracket] : []),
    { key: "length", title: `Train for (${unit})`, isNumber: true, show: ({ length }) => length, value: ({ length }) => length },
    { key: "reached", title: "Trials that reach the length", isNumber: true, show: ({ reached }) => reached, value: ({ reached }) => reached },
    { key: "stopped", title: "Trials that stop at the length", isNumber: true, show: ({ stopped }) => stopped, value: ({ stopped }) => stopped },
    ...(isExpected ? [expected] : []),
    { key: "all", title: `In all (${unit})`, isNumber: true, show: ({ stopped, length }) => numberText(stopped * length), value: ({ stopped, length }) => stopped * length },
  ];
}

/** The measured time and cost of the original, or why they are not known. */
function PaceText({ pace }: { pace: Pace }) {
  const { experiment_id: id, unit, seconds_per_unit: seconds, cost_per_unit: cost } = pace;
  if (seconds === null) return <p class="quiet">The pace of experiment {id} is not known: {pace.missing}.</p>;
  return (
    <p class="quiet">
      Measured in experiment {id}, with {countText(pace.slots_per_trial, "slot")} per trial: {numberText(seconds)} s
      {cost !== null && <> and {dollarsText(cost)}</>} per {unitText(unit)}.
    </p>
  );
}

function Estimate({ preview, pool, pace }: { preview: Found["preview"]; pool: Found["pool"]; pace: Pace | null }) {
  const { estimate } = preview;
  if (!estimate) return <p class="quiet">No estimate of the time: {preview.estimate_missing}</p>;
  const measured = measuredCost(estimate.units, preview.unit, pace);
  const cost = slotCost(estimate.slot_seconds, pool.offerings);
  return (
    <>
      <dl class="facts">
        <dt>Takes</dt>
        <dd>{durationText(estimate.makespan_seconds * 1000)} on {countText(estimate.slots, "slot")}, {Math.round(estimate.slot_use * 100)} % used</dd>
        <dt>Slot-hours</dt><dd>{numberText(estimate.slot_seconds / 3600)}</dd>
        {measured !== null && <><dt>Costs</dt><dd>{dollarsText(measured)} at the measured cost of experiment {pace!.experiment_id}</dd></>}
        {measured === null && cost !== null && <><dt>Costs</dt><dd>{dollarsText(cost)} at the cheapest slots of {pool.name}, which are never idle</dd></>}
      </dl>
      <p class="quiet">
        Simulated with made-up learning curves and without failures: it does not predict which trials win.
        {" "}<code>detcloud simulate --experiment ID</code> follows trials that were trained.
      </p>
    </>
  );
}
