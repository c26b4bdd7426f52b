/** A plane of two hyperparameters: cells coloured by their trials, contours, or points by rank. */

import "./heat_map.css";
import { useContext } from "preact/hooks";
import { ChartFrame } from "../../curves/chart_frame";
import { ChartSourceContext } from "../../curves/chart_source";
import { heatCells, type Bins, type HeatCell } from "../../curves/heat_cells";
import { metricScale } from "../../curves/rung_places";
import { rowsCsv } from "../../curves/save_chart";
import { useWidth } from "../../curves/use_width";
import { countText, numberText, shortText, valueText } from "../../parts/format";
import { Table, type Column } from "../../parts/table";
import { href, useRoute, useSetQuery } from "../../shell/router";
import type { Measured } from "./length_results";
import { PointsPlane, type PlaneProps } from "./points_plane";

const [CELL_WIDTH_MIN, CELL_WIDTH_MAX, CELL_HEIGHT, LEFT, TOP, BOTTOM, RIGHT] = [70, 160, 36, 170, 22, 84, 20];
// In narrower cells, the texts below them are slanted.
const [LEVEL_MIN, LEVEL_BOTTOM] = [140, 44];
// The opacities from which on the text of a cell needs the colour of texts on the accent, in dark and in light mode.
const [MIDDLE, STRONG] = [0.55, 0.75];
// With fewer trials nothing can be said of a plane.
const POINTS_MIN = 10;
const VIEWS = [["cells", "cells"], ["contours", "contours and points"], ["ranks", "points by rank"]] as const;

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

export function HeatMapPart({ names, logs, measured, metric, smallerIsBetter, place }: Props) {
  const { query } = useRoute();
  const setQuery = useSetQuery();
  const source = useContext(ChartSourceContext);
  if (names.length < 2) return null;
  const x = names.find((name) => name === query.get("x")) ?? names[0]!;
  const others = names.filter((name) => name !== x);
  const y = others.find((name) => name === query.get("y")) ?? others[0]!;
  const view = VIEWS.find(([key]) => key === query.get("plane"))?.[0] ?? "cells";
  const shown = { x, y, isLog: { x: logs.includes(x), y: logs.includes(y) }, metric, smallerIsBetter, place, measured: measured.filter(({ hparams }) => x in hparams && y in hparams) };
  return (
    <section aria-label="two hyperparameters">
      <h2>Interaction</h2>
      <div class="tools">
        <NameChoice label="Horizontal axis" names={names} value={x} onChoose={(name) => setQuery({ x: name, y: name === y ? x : y })} />
        <NameChoice label="Vertical axis" names={others} value={y} onChoose={(name) => setQuery({ x, y: name })} />
        <label>Show{" "}
          <select value={view} onChange={(event) => setQuery({ plane: event.currentTarget.value === "cells" ? null : event.currentTarget.value })}>
            {VIEWS.map(([key, text]) => <option key={key} value={key}>{text}</option>)}
          </select>
        </label>
      </div>
      <ChartSourceContext.Provider value={source && { ...source, settings: { x, y, plane: view } }}>
        {shown.measured.length === 0 ? <p class="quiet">No trial has both hyperparameters.</p>
          : view === "cells" ? <CellsPlane {...shown} /> : <PointsPlane {...shown} hasContours={view === "contours"} />}
      </ChartSourceContext.Provider>
    </section>
  );
}

function NameChoice(props: { label: string; names: string[]; value: string; onChoose: (name: string) => void }) {
  return (
    <label>{props.label}{" "}
      <select value={props.value} onChange={(event) => props.onChoose(event.currentTarget.value)}>
        {props.names.map((name) => <option key={name} value={name}>{shortText(name, 60)}</option>)}
      </select>
    </label>
  );
}

function CellsPlane({ x, y, isLog, measured, metric, smallerIsBetter, place }: PlaneProps) {
  const points = measured.map(({ id, metric: value, hparams }) => ({ key: id, x: hparams[x], y: hparams[y], metric: value }));
  const [width, ref] = useWidth(900);
  const { columns, rows, cells } = heatCells(points, valueText, isLog);
  const single = cells.filter(({ points: own }) => own.length === 1).length;
  const label = `${metric} by ${x} and ${y}`;
  const facts = { x, y, metric, columns, rows, smallerIsBetter };
  const csv = () => rowsCsv([x, y, "trials", `mean ${metric}`], cells.map(({ column, row, points: own, mean }) => [columns.label(column), rows.label(row), own.length, mean]));
  return (
    <>
      <p class="quiet">
        The stronger the colour of a cell, the better the mean {metric} of its trials. Cells without trials are empty.{" "}
        {cells.length} of {columns.count * rows.count} cells have some of the {countText(points.length, "trial")}
        {single > 0 && `, ${single} of them only one (dashed)`}.{" "}
        {points.length < POINTS_MIN && <strong>With so few trials, differences may be chance.</strong>}
      </p>
      <ChartFrame name={label} title={`${label} ${place}`} csv={csv}>
        <div class="scroll" role="region" aria-label={label} tabIndex={0} ref={ref}>
          <Picture label={label} cells={cells} width={width} {...facts} />
        </div>
      </ChartFrame>
      <details>
        <summary>As a table</summary>
        <Table label={`cells of ${x} and ${y}`} rows={cells} rowKey={({ column, row }) => `${column} ${row}`} columns={tableColumns(facts)} />
      </details>
    </>
  );
}

interface Facts {
  x: string;
  y: string;
  metric: string;
  columns: Bins;
  rows: Bins;
  smallerIsBetter: boolean;
}

function Picture({ label, cells, width, x, y, metric, columns, rows, smallerIsBetter }: Facts & { label: string; cells: HeatCell[]; width: number }) {
  const scale = metricScale(cells.map(({ mean }) => mean), smallerIsBetter);
  const cellWidth = Math.min(CELL_WIDTH_MAX, Math.max(CELL_WIDTH_MIN, (width - LEFT - RIGHT) / columns.count));
  const isLevel = cellWidth >= LEVEL_MIN;
  const height = TOP + rows.count * CELL_HEIGHT + (isLevel ? LEVEL_BOTTOM : BOTTOM);
  const toY = (row: number) => TOP + (rows.count - 1 - row) * CELL_HEIGHT;
  const below = TOP + rows.count * CELL_HEIGHT;
  const bins = (count: number) => Array.from({ length: count }, (_, bin) => bin);
  return (
    <svg class="heat" width={LEFT + columns.count * cellWidth + RIGHT} height={height} role="group" aria-label={label}>
      {cells.map((cell) => {
        const best = bestOf(cell, smallerIsBetter);
        const [left, top] = [LEFT + cell.column * cellWidth, toY(cell.row)];
        const opacity = 0.08 + 0.8 * (scale?.place(cell.mean) ?? 0);
        const text = `${x} ${columns.label(cell.column)}, ${y} ${rows.label(cell.row)}: mean ${metric} ${numberText(cell.mean)} `
          + `of ${countText(cell.points.length, "trial")}, the best is trial ${best.key}`;
        return (
          <a key={`${cell.column} ${cell.row}`} href={href("trials", best.key)} aria-label={text}>
            <rect x={left + 1} y={top + 1} width={cellWidth - 2} height={CELL_HEIGHT - 2}
              class={cell.points.length === 1 ? "few" : ""} fill-opacity={opacity}>
              <title>{text}</title>
            </rect>
            <text class={`value${opacity >= STRONG ? " strong" : opacity >= MIDDLE ? " middle" : ""}`} x={left + cellWidth / 2} y={top + CELL_HEIGHT / 2 + 4} text-anchor="middle">{numberText(cell.mean)}</text>
          </a>
        );
      })}
      <g aria-hidden="true">
        <text x={4} y={14}>{y.slice(0, 60)}{rows.isLog ? " (log)" : ""}</text>
        {bins(rows.count).map((row) => (
          <text key={row} x={LEFT - 6} y={toY(row) + CELL_HEIGHT / 2 + 4} text-anchor="end">{rows.label(row).slice(0, 26)}</text>
        ))}
        {bins(columns.count).map((column) => (
          <text key={column} text-anchor={isLevel ? "middle" : "end"} transform={`translate(${LEFT + (column + 0.5) * cellWidth} ${below + 14})${isLevel ? "" : " rotate(-25)"}`}>
            {columns.label(column).slice(0, 26)}
          </text>
        ))}
        <text x={LEFT + columns.count * cellWidth} y={height - 6} text-anchor="end">{x.slice(0, 60)}{columns.isLog ? " (log)" : ""}</text>
      </g>
    </svg>
  );
}

function tableColumns({ x, y, metric, columns, rows, smallerIsBetter }: Facts): Column<HeatCell>[] {
  return [
    { key: "x", title: x, show: ({ column }) => columns.label(column), value: ({ column }) => column },
    { key: "y", title: y, show: ({ row }) => rows.label(row), value: ({ row }) => row },
    { key: "trials", title: "Trials", isNumber: true, show: ({ points }) => points.length, value: ({ points }) => points.length },
    { key: "mean", title: `Mean ${metric}`, isNumber: true, show: ({ mean }) => numberText(mean), value: ({ mean }) => mean },
    {
      key: "best",
      title: "Best",
      show: (cell) => {
        const best = bestOf(cell, smallerIsBetter);
        return <><a href={href("trials", best.key)}>trial {best.key}</a> {numberText(best.metric)}</>;
      },
    },
  ];
}

function bestOf({ points }: HeatCell, smallerIsBetter: boolean): HeatCell["points"][number] {
  return points.reduce((best, one) => ((smallerIsBetter ? one.metric < best.metric : one.metric > best.metric) ? one : best));
}
