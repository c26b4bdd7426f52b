/** The trials as points of a plane of two hyperparameters, over contours of the metric or by rank. */

import { axisPlaces } from "../../curves/axes";
import { ChartFrame } from "../../curves/chart_frame";
import { Plane, type PlaneDot } from "../../curves/plane";
import { ranks } from "../../curves/ranks";
import { metricScale } from "../../curves/rung_places";
import { rowsCsv } from "../../curves/save_chart";
import { smoothSurface } from "../../curves/surface";
import { countText, numberText, valueText } from "../../parts/format";
import { href } from "../../shell/router";
import { ColourScale } from "./colour_scale";
import type { Measured } from "./length_results";

export interface PlaneProps {
  x: string;
  y: string;
  /** The axes on a logarithmic scale. */
  isLog: { x: boolean; y: boolean };
  /** The trials that have both hyperparameters, at least one. */
  measured: Measured[];
  metric: string;
  smallerIsBetter: boolean;
  /** The length and the experiment, for the names of files. */
  place: string;
}

export function PointsPlane({ x, y, isLog, measured, metric, smallerIsBetter, place, hasContours }: PlaneProps & { hasContours: boolean }) {
  const metrics = measured.map((one) => one.metric);
  const scale = metricScale(metrics, smallerIsBetter);
  const places = ranks(metrics.map((value) => (smallerIsBetter ? -value : value)));
  const most = Math.max(1, measured.length - 1);
  const best = Math.max(...places);
  const [xAxis, yAxis] = [axisPlaces(measured.map(({ hparams }) => hparams[x]), isLog.x), axisPlaces(measured.map(({ hparams }) => hparams[y]), isLog.y)];
  const dots = measured.map(({ id, metric: value, hparams }, n): PlaneDot => ({
    key: id,
    x: hparams[x],
    y: hparams[y],
    quality: hasContours ? scale?.place(value) ?? 0 : places[n]! / most,
    href: href("trials", id),
    label: `trial ${id}: ${x} ${valueText(hparams[x])}, ${y} ${valueText(hparams[y])}, ${metric} ${numberText(value)}, rank ${measured.length - places[n]!} of ${measured.length}`,
    isBest: places[n] === best,
  }));
  const surface = hasContours
    ? smoothSurface(dots.map((dot) => ({ x: xAxis.place(dot.x) ?? 0, y: yAxis.place(dot.y) ?? 0, value: dot.quality })))
    : undefined;
  const label = `${metric} by ${x} and ${y}${hasContours ? ", contours" : ", ranks"}`;
  const csv = () => rowsCsv(["trial", x, y, metric], measured.map(({ id, metric: value, hparams }) => [id, hparams[x], hparams[y], value]));
  return (
    <>
      <p class="quiet">
        {hasContours
          ? `Points are ${countText(measured.length, "trial")}. The colour around the points is the mean ${metric} of the trials nearby, and is left out far from all trials.`
          : `The colour of a point is the rank of the trial among ${countText(measured.length, "trial")}, so that a few extreme values do not hide the differences of the rest.`}{" "}
        <ColourScale low="worst" high="best" />
      </p>
      <ChartFrame name={label} title={`${label} ${place}`} csv={csv}>
        <div class="scroll" role="region" aria-label={label} tabIndex={0}>
          <Plane label={label} xLabel={x} yLabel={y} xAxis={xAxis} yAxis={yAxis} dots={dots} {...(surface ? { surface } : {})} />
        </div>
      </ChartFrame>
    </>
  );
}
