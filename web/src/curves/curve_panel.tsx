/** A chart with its settings, which stay in the view's address. */

import { setQuery, useRoute } from "../shell/router";
import { Empty } from "../parts/status";
import { Chart, type Curve } from "./chart";
import { bestSoFar, smoothCurve, type Point } from "./smoothing";
import { needsTimes, type XUnit } from "./x_axis";

interface Props {
  label: string;
  yLabel: string;
  curves: Curve[];
  /** Unknown for metrics that no search compares trials by: these have no best. */
  smallerIsBetter?: boolean | undefined;
  xUnit?: XUnit;
}

export function CurvePanel({ label, yLabel, curves, smallerIsBetter, xUnit }: Props) {
  return (
    <section>
      <CurveTools hasBest={smallerIsBetter !== undefined} />
      <CurveChart label={label} yLabel={yLabel} curves={curves} smallerIsBetter={smallerIsBetter} {...(xUnit && { xUnit })} />
    </section>
  );
}

/** The settings of all charts of a view. */
export function CurveTools({ hasBest }: { hasBest: boolean }) {
  const { weight, isLog, isBest } = useSettings(hasBest);
  return (
    <div class="tools">
      <label>Smoothing{" "}
        <input type="range" min="0" max="0.99" step="0.01" value={weight} disabled={isBest}
          onInput={(event) => setQuery({ smooth: event.currentTarget.value === "0" ? null : event.currentTarget.value })} />
        {" "}<span class="quiet">{weight ? weight.toFixed(2) : "none"}</span>
      </label>
      <label>
        <input type="checkbox" checked={isLog}
          onChange={(event) => setQuery({ scale: event.currentTarget.checked ? "log" : null })} /> Log scale
      </label>
      {hasBest && (
        <label>
          <input type="checkbox" checked={isBest}
            onChange={(event) => setQuery({ best: event.currentTarget.checked ? "1" : null })} /> Best so far
        </label>
      )}
      <span class="quiet">Drag across a chart to zoom in.</span>
    </div>
  );
}

/** Curves as the settings of the view have them. */
export function CurveChart({ label, yLabel, curves, smallerIsBetter, xUnit, height }: Props & { height?: number }) {
  const { weight, isLog, isBest } = useSettings(smallerIsBetter !== undefined);
  const change = (points: readonly Point[]) =>
    isBest ? bestSoFar(points, smallerIsBetter!) : smoothCurve(points, weight);
  const drawn = curves
    .filter((curve) => curve.points.length > 0)
    .map((curve) => ({ ...curve, points: change(curve.points) }));
  if (drawn.length === 0 && xUnit && needsTimes(xUnit)) return <Empty>No values of {yLabel} with a time yet.</Empty>;
  if (drawn.length === 0) return <Empty>No values of {yLabel} yet.</Empty>;
  return <Chart label={label} yLabel={yLabel} curves={drawn} isLog={isLog} {...(xUnit && { xUnit })} {...(height && { height })} />;
}

function useSettings(hasBest: boolean) {
  const { query } = useRoute();
  return {
    weight: Math.min(0.99, Math.max(0, Number(query.get("smooth")) || 0)),
    isLog: query.get("scale") === "log",
    isBest: query.get("best") === "1" && hasBest,
  };
}
