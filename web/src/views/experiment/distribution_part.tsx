/** The distribution of the results: the share of trials that are at least as good. */

import { axisPlaces } from "../../curves/axes";
import { ChartFrame } from "../../curves/chart_frame";
import { distribution, shareQuantile } from "../../curves/distribution";
import { rowsCsv } from "../../curves/save_chart";
import { numberText } from "../../parts/format";
import { Table, type Column } from "../../parts/table";

const [WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT] = [420, 260, 62, 12, 36, 12];
const SHARES = [0.1, 0.25, 0.5, 0.75, 0.9];

interface Props {
  metrics: number[];
  metric: string;
  smallerIsBetter: boolean;
  /** The length and the experiment, for the names of files. */
  place: string;
}

interface Row {
  text: string;
  value: number | null;
}

export function DistributionPart({ metrics, metric, smallerIsBetter, place }: Props) {
  const points = distribution(metrics, smallerIsBetter);
  const rows: Row[] = [
    { text: "best", value: points[0]?.value ?? null },
    ...SHARES.map((share) => ({ text: `${100 * share} % of the trials`, value: shareQuantile(points, share) })),
    { text: "all trials", value: points.at(-1)?.value ?? null },
  ];
  return (
    <section aria-label="distribution of results">
      <h2>Distribution</h2>
      <p class="quiet">The share of trials that are at least as good as a value of {metric}.</p>
      <div class="split">
        <ChartFrame name={`share of trials by ${metric}`} title={`share of trials by ${metric} ${place}`}
          csv={() => rowsCsv([metric, "share of trials"], points.map(({ value, share }) => [value, share]))}>
          <Steps points={points} metric={metric} smallerIsBetter={smallerIsBetter} />
        </ChartFrame>
        <Table label="shares of trials" rows={rows} rowKey={({ text }) => text} columns={columns(metric, smallerIsBetter)} />
      </div>
    </section>
  );
}

function Steps({ points, metric, smallerIsBetter }: { points: { value: number; share: number }[]; metric: string; smallerIsBetter: boolean }) {
  const axis = axisPlaces(points.map(({ value }) => value));
  const toX = (value: unknown) => LEFT + (axis.place(value) ?? 0) * (WIDTH - LEFT - RIGHT);
  const toY = (share: number) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  const path = points.map(({ value, share }) => `H${toX(value).toFixed(1)}V${toY(share).toFixed(1)}`).join("");
  return (
    <svg class="scatter" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`share of trials by ${metric}`}>
      <line x1={LEFT} y1={HEIGHT - BOTTOM} x2={WIDTH} y2={HEIGHT - BOTTOM} class="axis" />
      <line x1={LEFT} y1={0} x2={LEFT} y2={HEIGHT - BOTTOM} class="axis" />
      {[0, 0.5, 1].map((share) => <text key={share} x={LEFT - 4} y={toY(share) + 4} text-anchor="end">{100 * share} %</text>)}
      {axis.ends.map((value, n) => (
        <text key={String(value)} x={toX(value)} y={HEIGHT - BOTTOM + 14} text-anchor={n ? "end" : "start"}>{numberText(value as number)}</text>
      ))}
      <text x={(LEFT + WIDTH) / 2} y={HEIGHT - 4} text-anchor="middle">{metric.slice(0, 60)}{axis.isLog ? " (log)" : ""}</text>
      <path class="steps" d={`M${smallerIsBetter ? LEFT : WIDTH - RIGHT} ${toY(0)}${path}`} />
    </svg>
  );
}

function columns(metric: string, smallerIsBetter: boolean): Column<Row>[] {
  return [
    { key: "share", title: "Trials", show: ({ text }) => text },
    { key: "value", title: `${metric} ${smallerIsBetter ? "at most" : "at least"}`, isNumber: true, show: ({ value }) => numberText(value) },
  ];
}
