/** A chart of curves with its settings, which stay in the view's address. */

import { useRoute, useSetQuery } from "../shell/router";
import { useThemeChanges } from "../shell/theme";
import { Empty } from "../parts/status";
import { shortText, valueText } from "../parts/format";
import { Chart } from "./chart";
import { readColours } from "./chart_colours";
import { BY_GROUP, BY_HPARAM, BY_METRIC, colouringOf, factsOf, namesToColourBy, type Colouring, type TrialCurve } from "./colour_by";
import { scaleColour } from "./colour_scale";
import { curveColour } from "./palette";
import { quantileBand } from "./quantile_band";
import { bestSoFar, smoothCurve, type Point } from "./smoothing";
import { needsTimes, type XUnit } from "./x_axis";

// A band of fewer curves would say less than the curves themselves.
const BAND_MIN = 4;
// With more groups, the explanation of the colours would be longer than the legend.
const GROUPS_MAX = 16;

interface Props {
  label: string;
  yLabel: string;
  curves: TrialCurve[];
  /** Unknown for metrics that no search compares trials by: these have no best. */
  smallerIsBetter?: boolean | undefined;
  xUnit?: XUnit;
}

export function CurvePanel({ label, yLabel, curves, smallerIsBetter, xUnit }: Props) {
  return (
    <section>
      <CurveTools hasBest={smallerIsBetter !== undefined} curves={curves} />
      <CurveChart label={label} yLabel={yLabel} curves={curves} smallerIsBetter={smallerIsBetter} {...(xUnit && { xUnit })} />
    </section>
  );
}

/** The settings of all charts of a view. `curves` are of trials that may be coloured and summed up. */
export function CurveTools({ hasBest, curves = [] }: { hasBest: boolean; curves?: TrialCurve[] }) {
  const { weight, isLog, isBest, isBand } = useSettings(hasBest);
  const setQuery = useSetQuery();
  return (
    <div class="tools">
      <label title="A debiased exponential moving average over the points of each curve. The points themselves stay visible, faintly.">Smoothing{" "}
        <input type="range" min="0" max="0.99" step="0.01" value={weight} disabled={isBest}
          onInput={(event) => setQuery({ smooth: event.currentTarget.value === "0" ? null : event.currentTarget.value })} />
        {" "}<span class="quiet">{weight ? `debiased EMA, weight ${weight.toFixed(2)}, about ${Math.round(1 / (1 - weight))} points` : "none"}</span>
      </label>
      <Check label="Log scale" isOn={isLog} onChange={(isOn) => setQuery({ scale: isOn ? "log" : null })} />
      {hasBest && <Check label="Best so far" isOn={isBest} onChange={(isOn) => setQuery({ best: isOn ? "1" : null })} />}
      {curves.length >= BAND_MIN && <Check label="Median and quantiles" isOn={isBand} onChange={(isOn) => setQuery({ quantiles: isOn ? "1" : null })} />}
      <ColourChoice curves={curves} />
      <span class="quiet">Drag across a chart to zoom in.</span>
    </div>
  );
}

function Check({ label, isOn, onChange }: { label: string; isOn: boolean; onChange: (isOn: boolean) => void }) {
  return (
    <label>
      <input type="checkbox" checked={isOn} onChange={(event) => onChange(event.currentTarget.checked)} /> {label}
    </label>
  );
}

function ColourChoice({ curves }: { curves: TrialCurve[] }) {
  const { by } = useSettings(false);
  const setQuery = useSetQuery();
  const names = namesToColourBy(curves);
  const hasMetric = curves.filter(({ metric }) => typeof metric === "number").length > 1;
  const hasGroups = new Set(curves.map(({ group }) => group)).size > 1;
  if (curves.length < 2 || (names.length === 0 && !hasMetric && !hasGroups)) return null;
  return (
    <label>Colour by{" "}
      <select value={by ?? ""} onChange={(event) => setQuery({ colour: event.currentTarget.value || null })}>
        <option value="">{hasGroups ? "experiment" : "trial"}</option>
        {hasGroups && <option value="trial">trial</option>}
        {hasMetric && <option value={BY_METRIC}>best metric</option>}
        {names.map((name) => <option key={name} value={`${BY_HPARAM}${name}`}>{shortText(name, 40)}</option>)}
      </select>
    </label>
  );
}

/** Curves as the settings of the view have them. */
export function CurveChart({ label, yLabel, curves, smallerIsBetter, xUnit, height }: Props & { height?: number }) {
  const { weight, isLog, isBest, isBand, by } = useSettings(smallerIsBetter !== undefined);
  const known = curves.filter((curve) => curve.points.length > 0);
  if (known.length === 0 && xUnit && needsTimes(xUnit)) return <Empty>No values of {yLabel} with a time yet.</Empty>;
  if (known.length === 0) return <Empty>No values of {yLabel} yet.</Empty>;
  const hasGroups = new Set(curves.map(({ group }) => group)).size > 1;
  const colouring = colouringOf(known, by ?? (hasGroups ? BY_GROUP : null));
  const names = namesToColourBy(known);
  const changed = known.map((curve, n) => changedCurve(curve, { weight, isBest, isLess: smallerIsBetter, names, colouring, n }));
  const sums = isBand && known.length >= BAND_MIN ? bandCurves(changed) : [];
  const scale = sums.length === 0 && colouring.scale ? scaleTexts(colouring.scale, by) : undefined;
  const note = sums.length > 0 ? BAND_NOTE : undefined;
  const title = isBest ? `${yLabel}, best so far` : weight ? `${yLabel}, EMA ${weight.toFixed(2)}` : yLabel;
  return (
    <>
      {sums.length === 0 && <ColourLegend colouring={colouring} by={by} />}
      {sums.length > 0 && <p class="quiet">{BAND_NOTE}</p>}
      <Chart label={label} yLabel={title} curves={sums.length > 0 ? sums : changed} isLog={isLog} scale={scale} note={note} {...(xUnit && { xUnit })} {...(height && { height })} />
    </>
  );
}

const BAND_NOTE = "Line: median. Dark band: the middle half of the trials (25 to 75 %). Light band: 10 to 90 %. Each trial counts up to its last value.";

/** The name and the ends of a scale of colours. */
function scaleTexts({ low, high, isLog }: NonNullable<Colouring["scale"]>, by: string | null): { title: string; low: string; high: string } {
  return { title: `${shortText(colourTitle(by), 40)}${isLog ? " (log)" : ""}`, low: valueText(low), high: valueText(high) };
}

function colourTitle(by: string | null): string {
  return by === BY_METRIC ? "best metric" : by?.startsWith(BY_HPARAM) ? by.slice(BY_HPARAM.length) : "";
}

interface Change {
  weight: number;
  isBest: boolean;
  isLess: boolean | undefined;
  names: string[];
  colouring: Colouring;
  n: number;
}

function changedCurve(curve: TrialCurve, { weight, isBest, isLess, names, colouring, n }: Change): TrialCurve {
  const paint = colouring.paints[n];
  const looks = { facts: factsOf(curve.hparams ?? {}, names), ...(paint && { paint }) };
  if (isBest) return { ...curve, ...looks, points: bestSoFar(curve.points, isLess!) };
  if (weight <= 0) return { ...curve, ...looks };
  return { ...curve, ...looks, raw: curve.points, points: smoothCurve(curve.points, weight) };
}

/** A median with its band for each group of curves; none for groups that are too small. */
function bandCurves(curves: readonly TrialCurve[]): TrialCurve[] {
  const groups = new Map<string, TrialCurve[]>();
  for (const curve of curves) groups.set(curve.group ?? "", [...(groups.get(curve.group ?? "") ?? []), curve]);
  return [...groups].flatMap(([group, own], n): TrialCurve[] => {
    const band = quantileBand(own.map(({ points }): readonly Point[] => points));
    if (band.median.length === 0) return [];
    const label = `median of ${own.length} trials${group && ` of ${group}`}`;
    return [{ label, points: band.median, band, paint: { group: n }, ...(group && { short: group }) }];
  });
}

/** What the colours stand for. */
function ColourLegend({ colouring: { scale, groups }, by }: { colouring: Colouring; by: string | null }) {
  useThemeChanges();
  const { isDark } = readColours();
  const title = colourTitle(by);
  if (scale) {
    const texts = scaleTexts(scale, by);
    const steps = Array.from({ length: 24 }, (_, n) => n);
    return (
      <p class="colour-scale">
        {texts.title}: {texts.low}
        <svg class="swatch" width="144" height="10" aria-hidden="true">
          {steps.map((n) => <rect key={n} x={6 * n} width={6.5} height={10} fill={scaleColour(n / 23, isDark)} />)}
        </svg>
        {texts.high}
      </p>
    );
  }
  if (!groups || groups.length === 0 || groups.length > GROUPS_MAX) return null;
  return (
    <p class="colour-scale groups">
      {title && `${shortText(title, 40)}: `}
      {groups.map((group, n) => (
        <span key={group}>
          <svg class="swatch" width="12" height="10" aria-hidden="true"><rect width="12" height="10" rx="2" fill={curveColour(n, isDark)} /></svg> {shortText(group, 24)}
        </span>
      ))}
    </p>
  );
}

function useSettings(hasBest: boolean) {
  const { query } = useRoute();
  return {
    weight: Math.min(0.99, Math.max(0, Number(query.get("smooth")) || 0)),
    isLog: query.get("scale") === "log",
    isBest: query.get("best") === "1" && hasBest,
    isBand: query.get("quantiles") === "1",
    by: query.get("colour"),
  };
}
