/** Two metrics of the trials against each other, with the Pareto front marked. */

import { get } from "../../api/client";
import { ChartFrame } from "../../curves/chart_frame";
import { paretoFront } from "../../curves/pareto";
import { Scatter, type Dot } from "../../curves/scatter";
import { rowsCsv } from "../../curves/save_chart";
import { useLive } from "../../live/use_live";
import { numberText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { href, setQuery, useRoute } from "../../shell/router";
import { metricText, metricTitle, readMetric, type Compared, type Metric } from "./load_compared";

interface Objective {
  metric: Metric;
  isLess: boolean;
}

interface Props {
  compared: Compared[];
  /** The metrics to choose from, as `metricText` has them. */
  names: string[];
  motion: "moving" | "still";
}

export function ObjectivesPart({ compared, names, motion }: Props) {
  const [x, y] = [useObjective("x", compared), useObjective("y", compared)];
  if (names.length < 2 && !x && !y) return null;
  return (
    <section aria-label="two objectives">
      <h2>Two objectives</h2>
      <div class="tools">
        <ObjectiveChoice axis="x" title="Horizontal axis" names={names} objective={x} />
        <ObjectiveChoice axis="y" title="Vertical axis" names={names} objective={y} />
      </div>
      {x && y ? <Front compared={compared} x={x} y={y} motion={motion} /> : <p class="quiet">Choose two metrics to see the Pareto front: trials that no other trial beats in both metrics.</p>}
    </section>
  );
}

/** The objective of an axis by the address. What a search goes by has a direction; others have less as better unless said otherwise. */
function useObjective(axis: "x" | "y", compared: Compared[]): Objective | null {
  const { query } = useRoute();
  const metric = readMetric(query.get(`objective-${axis}`));
  if (!metric) return null;
  const direction = query.get(`direction-${axis}`);
  const searched = compared.find(({ experiment }) => metric.group === "validation" && metric.name === experiment.metric);
  const isLess = direction ? direction !== "larger" : searched?.experiment.smaller_is_better ?? true;
  return { metric, isLess };
}

interface ChoiceProps {
  axis: "x" | "y";
  title: string;
  names: string[];
  objective: Objective | null;
}

function ObjectiveChoice({ axis, title, names, objective }: ChoiceProps) {
  const chosen = objective ? metricText(objective.metric) : "";
  const choices = [...new Set([...names, ...(chosen ? [chosen] : [])])];
  return (
    <>
      <label>{title}{" "}
        <select value={chosen} onChange={(event) => setQuery({ [`objective-${axis}`]: event.currentTarget.value, [`direction-${axis}`]: null })}>
          <option value="">choose …</option>
          {choices.map((text) => <option key={text} value={text}>{metricTitle(readMetric(text)!)}</option>)}
        </select>
      </label>
      {objective && (
        <label>better if{" "}
          <select value={objective.isLess ? "smaller" : "larger"} aria-label={`${title}: better if`}
            onChange={(event) => setQuery({ [`direction-${axis}`]: event.currentTarget.value })}>
            <option>smaller</option>
            <option>larger</option>
          </select>
        </label>
      )}
    </>
  );
}

interface FrontProps {
  compared: Compared[];
  x: Objective;
  y: Objective;
  motion: "moving" | "still";
}

function Front({ compared, x, y, motion }: FrontProps) {
  const ids = compared.map(({ trial }) => trial.id);
  const live = useLive(`latest values of ${ids}`, (signal) =>
    Promise.all(ids.map(async (id) => {
      const { items } = await get("/api/v1/trials/{trial_id}/metrics/names", { path: { trial_id: id }, signal });
      return { id, latest: Object.fromEntries(items.map((item) => [metricText(item), item.last])) };
    })), () => motion);
  return (
    <Shown live={live}>
      {(trials) => {
        const points = trials.flatMap(({ id, latest }) => {
          const [across, up] = [latest[metricText(x.metric)], latest[metricText(y.metric)]];
          return across === undefined || up === undefined ? [] : [{ id, x: across, y: up }];
        });
        if (points.length === 0) return <Empty>No trial has values of both.</Empty>;
        return <FrontPicture points={points} left={trials.length - points.length} x={x} y={y} />;
      }}
    </Shown>
  );
}

interface PictureProps {
  points: { id: number; x: number; y: number }[];
  /** Trials without a value of both. */
  left: number;
  x: Objective;
  y: Objective;
}

function FrontPicture({ points, left, x, y }: PictureProps) {
  const isFront = paretoFront(points, { x: x.isLess, y: y.isLess });
  const dots = points.map((point, n): Dot => ({
    key: point.id,
    x: point.x,
    y: point.y,
    href: href("trials", point.id),
    label: `trial ${point.id}: ${numberText(point.x)}, ${numberText(point.y)}${isFront[n] ? ", on the Pareto front" : ""}`,
    isBest: isFront[n]!,
  }));
  return (
    <>
      <ChartFrame name="Pareto front" title={`${metricTitle(y.metric)} against ${metricTitle(x.metric)}`}
        csv={() => rowsCsv(["trial", metricTitle(x.metric), metricTitle(y.metric), "on the front"], points.map((point, n) => [point.id, point.x, point.y, isFront[n] ? "yes" : "no"]))}>
        <Scatter label="two objectives" xLabel={metricTitle(x.metric)} yLabel={metricTitle(y.metric)} dots={dots} isLogX={false} />
      </ChartFrame>
      <p>
        On the Pareto front, by their latest values:{" "}
        {dots.filter(({ isBest }) => isBest).map(({ key, href: to }, n) => <>{n > 0 && ", "}<a key={key} href={to}>trial {key}</a></>)}
        {left > 0 && <span class="quiet">; {left} without a value of both</span>}
      </p>
    </>
  );
}
