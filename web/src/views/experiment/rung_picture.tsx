/** One bracket as a picture: a row for each rung, the longest above, with a dot for each trial. */

import type { Schemas } from "../../api/client";
import { barShares, metricScale } from "../../curves/rung_places";
import { useWidth } from "../../curves/use_width";
import { countText, numberText } from "../../parts/format";
import { href } from "../../shell/router";

export type Rung = Schemas["Rung"];
export type Outcome = Schemas["Outcome"];

/** What the outcomes are called, in the order of the bars. */
export const OUTCOMES: readonly (readonly [Outcome, string])[] = [
  ["finished", "finished"],
  ["promoted", "promoted"],
  ["training", "training"],
  ["waiting", "waiting"],
  ["stopped", "stopped"],
  ["exited", "failed"],
];

const [WIDTH_MIN, WIDTH_MAX, LEFT, RIGHT, ROW, BOTTOM] = [560, 1216, 150, 110, 54, 30];

interface Props {
  label: string;
  metric: string;
  smallerIsBetter: boolean;
  rungs: Rung[];
  /** What the rung is called, with its length. */
  title: (rung: Rung) => string;
}

export function RungPicture({ label, metric, smallerIsBetter, rungs, title }: Props) {
  const [measured, ref] = useWidth(760);
  const width = Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, measured));
  const metrics = rungs.flatMap(({ trials }) => trials.flatMap((one) => (one.metric === null ? [] : [one.metric])));
  const scale = metricScale(metrics, smallerIsBetter);
  const height = rungs.length * ROW + BOTTOM;
  const toX = (place: number) => LEFT + place * (width - LEFT - RIGHT - 16);
  const toY = (place: number) => height - BOTTOM - place * ROW - ROW / 2;
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0} ref={ref}>
      <svg class="rungs" viewBox={`0 0 ${width} ${height}`} role="group" aria-label={label}>
        {scale && <Paths rungs={rungs} toX={(value) => toX(scale.place(value))} toY={toY} />}
        {rungs.map((rung, place) => (
          <g key={rung.number}>
            <line x1={LEFT - 8} x2={width} y1={toY(place)} y2={toY(place)} class="axis" />
            <text x={4} y={toY(place) - 4}>{title(rung)}</text>
            <text x={4} y={toY(place) + 10}>{countText(rung.reached, "trial")}</text>
            <Bar rung={rung} y={toY(place) + 16} />
            <Dots rung={rung} metric={metric} y={toY(place)}
              xOf={(value, n) => (value === null || !scale ? width - RIGHT + 8 + (n % 12) * 8 : toX(scale.place(value)))} />
          </g>
        ))}
        {scale && (
          <>
            <text x={LEFT} y={height - 10}>{scale.isCut ? "worse than " : ""}{numberText(scale.worst)}</text>
            <text x={toX(1)} y={height - 10} text-anchor="end">{metric.slice(0, 40)}, best {numberText(scale.best)}</text>
          </>
        )}
        <text x={width - RIGHT + 4} y={height - 10}>no result yet</text>
      </svg>
    </div>
  );
}

/** Lines from rung to rung, for trials that have a result in both. */
function Paths({ rungs, toX, toY }: { rungs: Rung[]; toX: (metric: number) => number; toY: (place: number) => number }) {
  const lines = rungs.slice(1).flatMap((rung, n) => {
    const before = new Map(rungs[n]!.trials.map((one) => [one.id, one.metric]));
    return rung.trials.flatMap(({ id, metric }) => {
      const from = before.get(id) ?? null;
      if (metric === null || from === null) return [];
      return [<line key={`${n} ${id}`} class="path" x1={toX(from)} y1={toY(n)} x2={toX(metric)} y2={toY(n + 1)} />];
    });
  });
  return <g aria-hidden="true">{lines}</g>;
}

function Bar({ rung, y }: { rung: Rung; y: number }) {
  const shares = barShares(OUTCOMES.map(([outcome]) => rung.outcomes[outcome] ?? 0));
  const texts = OUTCOMES.filter(([outcome]) => rung.outcomes[outcome]).map(([outcome, text]) => `${rung.outcomes[outcome]} ${text}`);
  return (
    <g role="img" aria-label={`of ${countText(rung.reached, "trial")} ${texts.join(", ") || "none"}`} data-tip={`${countText(rung.reached, "trial")}\n${texts.join(", ")}`}>
      {shares.map(({ start, size }, n) => size > 0 && (
        <rect key={n} class={OUTCOMES[n]![0]} x={4 + start * (LEFT - 24)} width={size * (LEFT - 24)} y={y} height={6} />
      ))}
    </g>
  );
}

function Dots(props: { rung: Rung; metric: string; y: number; xOf: (metric: number | null, place: number) => number }) {
  const { rung, metric, y, xOf } = props;
  const names = new Map(OUTCOMES);
  // The best is drawn last, above the others.
  const withoutResult = rung.trials.filter((one) => one.metric === null).map(({ id }) => id);
  return (
    <>
      {[...rung.trials].reverse().map((one) => {
        const label = `trial ${one.id}: ${one.metric === null ? "no result yet" : `${metric} ${numberText(one.metric)}`}, ${names.get(one.outcome)}`;
        return (
          <a key={one.id} href={href("trials", one.id)} aria-label={label}>
            <circle class={one.outcome} cx={xOf(one.metric, withoutResult.indexOf(one.id))} cy={y} r={5} data-tip={label.replace(": ", "\n")} />
          </a>
        );
      })}
    </>
  );
}
