/** All hyperparameters of the trials together, those of parts of their axes alone, and a table of these. */

import { axisPlaces, isWithin, type Axis, type AxisRange } from "../../curves/axes";
import { ChartFrame } from "../../curves/chart_frame";
import { Parallel, type Row } from "../../curves/parallel";
import { ranks } from "../../curves/ranks";
import { rowsCsv } from "../../curves/save_chart";
import { countText, numberText, shortText, valueText } from "../../parts/format";
import { Table, type Column } from "../../parts/table";
import { href, useRoute, useSetQuery } from "../../shell/router";
import type { Measured } from "./length_results";
import { ColourScale } from "./colour_scale";
import { readRanges, writeRanges } from "./kept_ranges";

// As many as the view that compares takes.
const COMPARED_MAX = 50;

interface Props {
  names: string[];
  /** The names on a logarithmic scale. */
  logs: readonly string[];
  measured: Measured[];
  metric: string;
  smallerIsBetter: boolean;
  /** The length and the experiment, for the names of files. */
  place: string;
}

export function ParallelPart({ names, logs, measured, metric, smallerIsBetter, place }: Props) {
  const { query } = useRoute();
  const setQuery = useSetQuery();
  const all = [...names, metric];
  const values = measured.map((one) => [...names.map((name) => one.hparams[name]), one.metric]);
  const axes = all.map((name, n) => axisPlaces(values.map((row) => row[n]), n < names.length && logs.includes(name)));
  const coloured = Math.max(0, all.indexOf(query.get("colour") ?? metric));
  const places = ranks(measured.map((one) => (smallerIsBetter ? -one.metric : one.metric)));
  const rows = measured.map((one, n): Row => ({
    key: one.id,
    href: href("trials", one.id),
    label: `trial ${one.id}: ${metric} ${numberText(one.metric)}, ${names.map((name) => `${name} ${valueText(one.hparams[name] ?? null)}`).join(", ")}`,
    values: values[n]!,
    quality: coloured === names.length ? places[n]! / Math.max(1, measured.length - 1) : axes[coloured]!.place(values[n]![coloured]) ?? 0,
  }));
  const known = readRanges(query.get("keep"));
  const ranges = all.map((name) => known.get(name));
  const isKept = (row: Row) => ranges.every((range, n) => !range || isWithin(axes[n]!, range, row.values[n]));
  const kept = new Set(rows.filter(isKept).map(({ key }) => key));
  const keep = (axis: number, range: AxisRange | null) => {
    const next = new Map(known);
    if (range) next.set(all[axis]!, range);
    else next.delete(all[axis]!);
    setQuery({ keep: writeRanges(next) });
  };
  return (
    <section aria-label="hyperparameters together">
      <h2>Parallel coordinates</h2>
      <div class="tools">
        <label>Colour by{" "}
          <select value={all[coloured]} onChange={(event) => setQuery({ colour: event.currentTarget.value === metric ? null : event.currentTarget.value })}>
            {all.map((name) => <option key={name} value={name}>{shortText(name, 60)}</option>)}
          </select>
        </label>
        <ColourScale low={coloured === names.length ? "worst" : "lowest"} high={coloured === names.length ? "best" : "highest"} />
        <span role="status">{kept.size} of {countText(rows.length, "trial")} kept</span>
        {ranges.some(Boolean) && <button onClick={() => setQuery({ keep: null })}>Clear limits</button>}
        {kept.size > 0 && kept.size <= COMPARED_MAX && <a href={`${href("compare")}?trials=${[...kept].join(",")}`}>Compare selected trials</a>}
      </div>
      <ChartFrame name="hyperparameters of each trial" title={`hyperparameters of each trial ${place}`}
        csv={() => rowsCsv(["trial", ...all], rows.filter(({ key }) => kept.has(key)).map(({ key, values: own }) => [key, ...own]))}>
        <Parallel label="hyperparameters of each trial" names={all} axes={axes} rows={rows} kept={kept} ranges={ranges} onRange={keep} />
      </ChartFrame>
      <details>
        <summary>Limit an axis</summary>
        <div class="split">{all.map((name, n) => <RangeFields key={name} name={name} axis={axes[n]!} range={ranges[n]} onRange={(range) => keep(n, range)} />)}</div>
      </details>
      <details open={ranges.some(Boolean)}>
        <summary>Trials within the limits</summary>
        <Table label="kept trials" rows={measured.filter(({ id }) => kept.has(id))} rowKey={({ id }) => id} columns={keptColumns(names, metric, measured)} />
      </details>
    </section>
  );
}

interface RangeProps {
  name: string;
  axis: Axis;
  range: AxisRange | undefined;
  onRange: (range: AxisRange | null) => void;
}

/** What dragging along an axis does, for a keyboard. */
function RangeFields({ name, axis, range, onRange }: RangeProps) {
  const [least, greatest] = [axis.ends[0], axis.ends.at(-1)];
  const [low, high] = range ?? [least, greatest];
  const change = (next: AxisRange) => onRange(next[0] === least && next[1] === greatest ? null : next);
  const isNumeric = axis.ends.every((end) => typeof end === "number");
  const field = (which: "from" | "to", value: unknown, onValue: (value: unknown) => void) => isNumeric ? (
    <input type="number" step="any" aria-label={`${name} ${which}`} value={String(value)}
      onChange={({ currentTarget: { value: text } }) => onValue(text === "" ? (which === "from" ? least : greatest) : Number(text))} />
  ) : (
    <select aria-label={`${name} ${which}`} value={JSON.stringify(value)} onChange={(event) => onValue(JSON.parse(event.currentTarget.value))}>
      {axis.ends.map((end) => <option key={JSON.stringify(end)} value={JSON.stringify(end)}>{shortText(valueText(end), 40)}</option>)}
    </select>
  );
  return (
    <p class="tools">
      <span>{shortText(name, 40)}</span> {field("from", low, (value) => change([value, high]))} to {field("to", high, (value) => change([low, value]))}
    </p>
  );
}

function keptColumns(names: string[], metric: string, measured: Measured[]): Column<Measured>[] {
  return [
    { key: "trial", title: "Trial", isNumber: true, show: ({ id }) => <a href={href("trials", id)}>{id}</a>, value: ({ id }) => id },
    { key: "metric", title: metric, isNumber: true, show: (one) => numberText(one.metric), value: (one) => one.metric },
    ...names.map((name): Column<Measured> => ({
      key: `hparams.${name}`,
      title: name,
      isNumber: measured.every(({ hparams }) => !(name in hparams) || typeof hparams[name] === "number"),
      show: ({ hparams }) => (name in hparams ? valueText(hparams[name]) : "–"),
      value: ({ hparams }) => (typeof hparams[name] === "number" ? (hparams[name] as number) : name in hparams ? valueText(hparams[name]) : null),
    })),
  ];
}
