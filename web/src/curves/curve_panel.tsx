/** A chart with its settings, which stay in the view's address. */

import { setQuery, useRoute } from "../shell/router";
import { Empty } from "../parts/status";
import { Chart, type Curve } from "./chart";
import { bestSoFar, smoothCurve, type Point } from "./smoothing";

interface Props {
  label: string;
  yLabel: string;
  curves: Curve[];
  /** Unknown for metrics that no search compares trials by: these have no best. */
  smallerIsBetter?: boolean | undefined;
}

export function CurvePanel({ label, yLabel, curves, smallerIsBetter }: Props) {
  const { query } = useRoute();
  const weight = Math.min(0.99, Math.max(0, Number(query.get("smooth")) || 0));
  const isLog = query.get("scale") === "log";
  const isBest = query.get("best") === "1" && smallerIsBetter !== undefined;
  const change = (points: readonly Point[]) =>
    isBest ? bestSoFar(points, smallerIsBetter!) : smoothCurve(points, weight);
  const drawn = curves
    .filter((curve) => curve.points.length > 0)
    .map((curve) => ({ ...curve, points: change(curve.points) }));
  return (
    <section>
      <div class="tools">
        <label>Smoothing{" "}
          <input type="range" min="0" max="0.99" step="0.01" value={weight} disabled={isBest}
            onInput={(event) => setQuery({ smooth: event.currentTarget.value === "0" ? null : event.currentTarget.value })} />
        </label>
        <label>
          <input type="checkbox" checked={isLog}
            onChange={(event) => setQuery({ scale: event.currentTarget.checked ? "log" : null })} /> Log scale
        </label>
        {smallerIsBetter !== undefined && (
          <label>
            <input type="checkbox" checked={isBest}
              onChange={(event) => setQuery({ best: event.currentTarget.checked ? "1" : null })} /> Best so far
          </label>
        )}
      </div>
      {drawn.length
        ? <Chart label={label} yLabel={yLabel} curves={drawn} isLog={isLog} />
        : <Empty>No values of {yLabel} yet.</Empty>}
    </section>
  );
}
