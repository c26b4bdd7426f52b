/** One bracket as a flow: how many trials of each rung went on to the next, and what became of the others. */

import type { Schemas } from "../../api/client";
import { ChartFrame } from "../../curves/chart_frame";
import { barShares } from "../../curves/rung_places";
import { rowsCsv } from "../../curves/save_chart";
import { SvgTip } from "../../curves/svg_tip";
import { useWidth } from "../../curves/use_width";
import { countText, numberText } from "../../parts/format";
import { OUTCOMES, type Outcome, type Rung } from "./rung_picture";

type Bracket = Schemas["Bracket"];

const [NODE, TOP, HEIGHT, LINE, SIDE, LAST] = [14, 40, 170, 15, 12, 160];
// From a rung to the next, in pixels.
const [COLUMN_MIN, COLUMN_MAX] = [170, 340];
// A wider flow would not fit any screen.
export const FLOW_RUNGS_MAX = 12;

/** The outcomes from the top of a rung's bar to its bottom: trials that went on are first. */
const ORDER: readonly Outcome[] = ["promoted", "finished", "training", "waiting", "stopped", "exited"];

interface Props {
  name: string;
  title: string;
  metric: string;
  rungs: Bracket["rungs"];
  /** The length of a rung with its unit. */
  length: (rung: Rung) => string;
}

export function RungFlow({ name, title, metric, rungs, length }: Props) {
  const most = Math.max(1, ...rungs.map(({ reached }) => reached));
  const lines = Math.max(1, ...rungs.map(({ outcomes }) => ORDER.filter((outcome) => outcomes[outcome]).length));
  const [measured, ref] = useWidth(900);
  const column = Math.max(COLUMN_MIN, Math.min(COLUMN_MAX, (measured - LAST - 2 * SIDE) / Math.max(1, rungs.length - 1)));
  const width = (rungs.length - 1) * column + LAST + 2 * SIDE;
  const height = TOP + HEIGHT + 14 + lines * LINE;
  const tall = (count: number) => (count / most) * HEIGHT;
  const csv = () => rowsCsv(["rung", "length", "reached", ...ORDER, `best ${metric}`], rungs.map((rung) =>
    [rung.number + 1, rung.length, rung.reached, ...ORDER.map((outcome) => rung.outcomes[outcome] ?? 0), rung.best_metric]));
  return (
    <ChartFrame name={name} title={title} csv={csv}>
      <SvgTip>
        <div class="scroll" role="region" aria-label={title} tabIndex={0} ref={ref}>
          <svg class="flow" width={width} height={height} role="group" aria-label={title}>
            {rungs.slice(1).map((rung, n) => <Flow key={rung.number} from={rungs[n]!} to={rung} left={SIDE + n * column + NODE} right={SIDE + (n + 1) * column} tall={tall} />)}
            {rungs.map((rung, n) => <Node key={rung.number} rung={rung} left={SIDE + n * column} tall={tall} length={length(rung)} metric={metric} />)}
          </svg>
        </div>
      </SvgTip>
    </ChartFrame>
  );
}

/** A band from the promoted trials of a rung to all trials of the next. */
function Flow({ from, to, left, right, tall }: { from: Rung; to: Rung; left: number; right: number; tall: (count: number) => number }) {
  const promoted = from.outcomes.promoted ?? 0;
  if (!promoted || !to.reached) return null;
  const middle = (left + right) / 2;
  const [fromBottom, toBottom] = [TOP + tall(promoted), TOP + tall(to.reached)];
  const d = `M${left} ${TOP}C${middle} ${TOP} ${middle} ${TOP} ${right} ${TOP}V${toBottom}C${middle} ${toBottom} ${middle} ${fromBottom} ${left} ${fromBottom}Z`;
  return <path class="stream" d={d} data-tip={`${countText(promoted, "trial")} promoted\nfrom rung ${from.number + 1} to rung ${to.number + 1}`} />;
}

function Node({ rung, left, tall, length, metric }: { rung: Rung; left: number; tall: (count: number) => number; length: string; metric: string }) {
  const known = ORDER.filter((outcome) => rung.outcomes[outcome]);
  const shares = barShares(known.map((outcome) => rung.outcomes[outcome] ?? 0));
  const names = new Map(OUTCOMES);
  const whole = Math.max(2, tall(rung.reached));
  const best = rung.best_metric === null ? "" : `, best ${metric} ${numberText(rung.best_metric)}`;
  const summary = `rung ${rung.number + 1}, ${length}: ${countText(rung.reached, "trial")}, ${known.map((outcome) => `${rung.outcomes[outcome]} ${names.get(outcome)}`).join(", ")}${best}`;
  return (
    <g role="img" aria-label={summary}>
      <text x={left} y={14} class="head">{length}</text>
      <text x={left} y={29}>{countText(rung.reached, "trial")}{best && `, best ${numberText(rung.best_metric)}`}</text>
      {known.map((outcome, n) => (
        <rect key={outcome} class={outcome} x={left} width={NODE} y={TOP + shares[n]!.start * whole} height={Math.max(1, shares[n]!.size * whole - 1)}
          data-tip={`${countText(rung.outcomes[outcome]!, "trial")} ${names.get(outcome)}\nrung ${rung.number + 1}, ${length}`} />
      ))}
      {known.map((outcome, n) => (
        <g key={`text ${outcome}`}>
          <rect class={outcome} x={left} width={9} height={9} y={TOP + HEIGHT + 8 + n * LINE} rx={2} />
          <text x={left + 14} y={TOP + HEIGHT + 16 + n * LINE}>{rung.outcomes[outcome]} {names.get(outcome)}</text>
        </g>
      ))}
    </g>
  );
}
