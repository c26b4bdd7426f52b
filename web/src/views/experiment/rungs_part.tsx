/** The brackets of a search with their rungs, or its rounds: as pictures, and as a table. */

import type { ExperimentWhole } from "../../api/answers";
import { markOf, motionOfParts } from "../../live/owner";
import "./rungs.css";
import { get, type Schemas } from "../../api/client";
import { ChartFrame } from "../../curves/chart_frame";
import { rowsCsv } from "../../curves/save_chart";
import { SvgTip } from "../../curves/svg_tip";
import { useLive } from "../../live/use_live";
import { numberText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import { lengthText } from "./length_results";
import { FLOW_RUNGS_MAX, RungFlow } from "./rung_flow";
import { OUTCOMES, RungPicture, type Outcome, type Rung } from "./rung_picture";

type Rungs = Schemas["Rungs"];
interface Row extends Rung {
  bracket: number;
}

export function RungsPart({ experiment }: { experiment: ExperimentWhole }) {
  const id = experiment.id!;
  const live = useLive(
    `rungs ${id}`,
    (signal) => get("/api/v1/experiments/{experiment_id}/rungs", { path: { experiment_id: id }, signal }),
    () => motionOfParts(experiment),
    markOf(experiment),
  );
  return (
    <Shown live={live}>
      {(found) => found.brackets.length === 0
        ? <Empty>The trials of a {experiment.searcher} search are not compared at rungs.</Empty>
        : <Brackets found={found} id={id} />}
    </Shown>
  );
}

function Brackets({ found, id }: { found: Rungs; id: number }) {
  const { brackets, metric, unit, smaller_is_better: smallerIsBetter } = found;
  const rows = brackets.flatMap(({ rungs }, place) => rungs.map((rung): Row => ({ ...rung, bracket: place + 1 })));
  const several = brackets.length > 1;
  return (
    <>
      {brackets.map(({ rungs }, place) => rungs.length > 1 && rungs.length <= FLOW_RUNGS_MAX && (
        <RungFlow key={place} name={several ? `Trials from rung to rung, bracket ${place + 1}` : "Trials from rung to rung"}
          title={several ? `flow of trials, bracket ${place + 1}, experiment ${id}` : `flow of trials, experiment ${id}`} metric={metric} rungs={rungs}
          length={({ length }) => lengthText(length, unit)} />
      ))}
      <p class="quiet">
        Each dot is one of the best trials of a rung, farther to the right the better its {metric} was there. Lines
        connect the dots of trials that were trained longer, upwards.
      </p>
      <Legend />
      {brackets.map(({ rungs }, place) => (
        <section key={place}>
          <ChartFrame name={several ? `Bracket ${place + 1} by ${metric}` : `Trials by ${metric}`} title={several ? `rungs of bracket ${place + 1}, experiment ${id}` : `rungs of experiment ${id}`} csv={() => rungsCsv(rungs, metric)}>
            <SvgTip>
              <RungPicture label={several ? `rungs of bracket ${place + 1}` : "rungs"} metric={metric} rungs={rungs}
                smallerIsBetter={smallerIsBetter} title={({ length }) => lengthText(length, unit)} />
            </SvgTip>
          </ChartFrame>
        </section>
      ))}
      <h2>As a table</h2>
      <Table label="rungs" rows={rows} rowKey={({ bracket, number }) => `${bracket} ${number}`}
        columns={columns(metric, unit, several)} />
    </>
  );
}

function rungsCsv(rungs: Rung[], metric: string): string {
  const rows = rungs.flatMap(({ number, length, trials }) => trials.map((trial) => [number + 1, length, trial.id, trial.metric, trial.outcome]));
  return rowsCsv(["rung", "length", "trial", metric, "outcome"], rows);
}

function Legend() {
  return (
    <ul class="outcomes" aria-label="outcomes">
      {OUTCOMES.map(([outcome, text]) => (
        <li key={outcome}>
          <svg width="12" height="12" aria-hidden="true"><rect class={outcome} x="1" y="1" width="10" height="10" rx="5" /></svg> {text}
        </li>
      ))}
    </ul>
  );
}

function columns(metric: string, unit: string, several: boolean): Column<Row>[] {
  const count = (outcome: Outcome, title: string): Column<Row> => ({
    key: outcome,
    title,
    isNumber: true,
    show: ({ outcomes }) => outcomes[outcome] ?? 0,
    value: ({ outcomes }) => outcomes[outcome] ?? 0,
  });
  return [
    ...(several ? [{ key: "bracket", title: "Bracket", isNumber: true, show: ({ bracket }: Row) => bracket, value: ({ bracket }: Row) => bracket }] : []),
    { key: "rung", title: "Rung", isNumber: true, show: ({ number }) => number + 1, value: ({ number }) => number },
    { key: "length", title: `Length (${unit})`, isNumber: true, show: ({ length }) => length, value: ({ length }) => length },
    { key: "reached", title: "Trials", isNumber: true, show: ({ reached }) => reached, value: ({ reached }) => reached },
    ...OUTCOMES.map(([outcome, text]) => count(outcome, text[0]!.toUpperCase() + text.slice(1))),
    { key: "best", title: `Best ${metric}`, isNumber: true, show: ({ best_metric: best }) => numberText(best), value: ({ best_metric: best }) => best },
    { key: "by", title: "By", show: ({ best_metric: best, trials }) => (best !== null && trials[0] ? <a href={href("trials", trials[0].id)}>trial {trials[0].id}</a> : "–") },
  ];
}
