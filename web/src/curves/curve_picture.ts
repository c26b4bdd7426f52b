/** The picture of curves as SVG, with the axes and colours that uPlot shows. */

import type uPlot from "uplot";
import { BAND_OPACITY, LINE_WIDTH, POINTED_MAX, RAW_OPACITY, endLabels, plotTicks, seriesOf, type Drawing } from "./chart_options";
import { scaleColour } from "./colour_scale";
import { bandsOf, colourOf, dashesOf } from "./curve";
import { escapeXml, framedPicture, type Picture } from "./picture";
import { X_TITLES } from "./x_axis";

// Of more curves a picture names the first.
const LEGEND_MAX = 40;
const LEGEND_LINE = 18;
const LEGEND_COLUMN = 190;

/** What a chart says beside its curves. */
export interface Explanation {
  /** The name and the ends of the scale of colours. */
  scale?: { title: string; low: string; high: string } | undefined;
  note?: string | undefined;
}

type Place = readonly [x: number, y: number];

/** The picture of the part of a chart that is in sight, without its hidden curves. */
export function curvePicture(plot: uPlot, drawing: Drawing, title: string, explanation: Explanation = {}): Picture {
  const { curves, layers, colours } = drawing;
  const ratio = devicePixelRatio;
  const [left, top, width, height] = [plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height].map((size) => size / ratio) as [number, number, number, number];
  const first = layers.length - curves.length;
  const isShown = (n: number) => plot.series[seriesOf(first + n)]!.show !== false;
  const placesOf = (layer: number): Place[] => {
    const values = plot.data[seriesOf(layer)]!;
    return Array.from(plot.data[0]).flatMap((x, n) => {
      const y = values[n];
      return typeof y === "number" ? [[left + plot.valToPos(x, "x"), top + plot.valToPos(y, "y")] as const] : [];
    });
  };
  const bands = bandsOf(layers).filter(({ curve }) => isShown(curve)).map(({ curve, low, high }) => {
    const outline = [...placesOf(high), ...placesOf(low).reverse()];
    return `<path d="${pathOf(outline)}Z" fill="${colourOf(curves[curve]!, curve, colours.isDark)}" fill-opacity="${BAND_OPACITY}"/>`;
  });
  const lines = layers.flatMap(({ curve, role }, layer) => {
    if (!isShown(curve) || (role !== "raw" && role !== "main")) return [];
    const colour = colourOf(curves[curve]!, curve, colours.isDark);
    const places = placesOf(layer);
    if (role === "raw") return [`<path d="${pathOf(places)}" fill="none" stroke="${colour}" stroke-opacity="${RAW_OPACITY}"/>`];
    const { kind = "line" } = curves[curve]!;
    const dots = kind === "points" || (kind === "line" && places.length < POINTED_MAX) ? places.map(([x, y]) => `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${kind === "points" ? 3.5 : 2.5}" fill="${colour}"/>`) : [];
    if (kind === "points") return dots;
    const dashes = dashesOf(curves[curve]!, curve).join(" ");
    return [`<path d="${pathOf(kind === "steps" ? stepsOf(places) : places)}" fill="none" stroke="${colour}" stroke-width="${LINE_WIDTH}" stroke-linejoin="round"${dashes && ` stroke-dasharray="${dashes}"`}/>`, ...dots];
  });
  const labels = endLabels(plot, curves, isShown).map(({ text, x, y }) =>
    `<text x="${x.toFixed(1)}" y="${(y + 4).toFixed(1)}" fill="${colours.text}" stroke="${colours.back}" stroke-width="3" paint-order="stroke">${escapeXml(text)}</text>`);
  const legend = legendOf(drawing, isShown, plot.width, explanation);
  const box = { left, top, width, height };
  const content = `<svg x="0" y="28" width="${plot.width}" height="${plot.height + legend.height}" font-size="12">`
    + `<clipPath id="inside"><rect x="${left - 4}" y="${top - 4}" width="${width + 8}" height="${height + 8}"/></clipPath>`
    + axesOf(plot, drawing, box)
    + `<g clip-path="url(#inside)">${bands.join("")}${lines.join("")}</g>${labels.join("")}`
    + `<g transform="translate(0 ${plot.height})">${legend.text}</g></svg>`;
  return framedPicture(content, title, plot.width, plot.height + legend.height);
}

interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

function axesOf(plot: uPlot, drawing: Drawing, { left, top, width, height }: Box): string {
  const { colours, xUnit, yLabel } = drawing;
  const bottom = top + height;
  const text = (x: number, y: number, content: string, rest: string) => `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" fill="${colours.quiet}" ${rest}>${escapeXml(content)}</text>`;
  const grid = (x1: number, y1: number, x2: number, y2: number) => `<path d="M${x1.toFixed(1)} ${y1.toFixed(1)}L${x2.toFixed(1)} ${y2.toFixed(1)}" stroke="${colours.line}"/>`;
  const across = plotTicks(plot, "x", drawing).map(({ at, text: label }) => {
    const x = left + plot.valToPos(at, "x");
    return grid(x, top, x, bottom + 5) + text(x, bottom + 20, label, 'text-anchor="middle"');
  });
  const up = plotTicks(plot, "y", drawing).map(({ at, text: label }) => {
    const y = top + plot.valToPos(at, "y");
    return grid(left - 5, y, left + width, y) + text(left - 9, y + 4, label, 'text-anchor="end"');
  });
  const middle = top + height / 2;
  return across.join("") + up.join("")
    + text(left + width / 2, bottom + 40, drawing.xTitle ?? X_TITLES[xUnit], 'text-anchor="middle"')
    + text(14, middle, yLabel, `text-anchor="middle" transform="rotate(-90 14 ${middle.toFixed(1)})"`);
}

function legendOf({ curves, colours }: Drawing, isShown: (n: number) => boolean, width: number, { scale, note }: Explanation): { text: string; height: number } {
  const shown = curves.flatMap((curve, n) => (isShown(n) ? [{ curve, n }] : []));
  const columns = Math.max(1, Math.floor(width / LEGEND_COLUMN));
  const entries = shown.slice(0, LEGEND_MAX).map(({ curve, n }, place) => {
    const [x, y] = [8 + (place % columns) * LEGEND_COLUMN, 12 + Math.floor(place / columns) * LEGEND_LINE];
    const dashes = dashesOf(curve, n).join(" ");
    const colour = colourOf(curve, n, colours.isDark);
    const label = curve.label.length > 26 ? `${curve.label.slice(0, 25)}…` : curve.label;
    const name = `<text x="${x + 24}" y="${y + 4}" fill="${colours.text}">${escapeXml(label)}</text>`;
    if (curve.kind === "points") return `<circle cx="${x + 9}" cy="${y}" r="3.5" fill="${colour}"/>${name}`;
    return `<path d="M${x} ${y}h18" stroke="${colour}" stroke-width="3"${dashes && ` stroke-dasharray="${dashes}"`}/>${name}`;
  });
  const rows = Math.ceil(entries.length / columns);
  const more = shown.length - entries.length;
  let below = rows + (more > 0 ? 1 : 0);
  const line = (text: string, x: number) => `<text x="${x}" y="${16 + below * LEGEND_LINE}" fill="${colours.quiet}">${escapeXml(text)}</text>`;
  let explained = "";
  if (scale) {
    const begin = 8 + 7 * (scale.title.length + scale.low.length + 3);
    const steps = Array.from({ length: 24 }, (_, n) => `<rect x="${begin + 6 * n}" y="${7 + below * LEGEND_LINE}" width="6.5" height="10" fill="${scaleColour(n / 23, colours.isDark)}"/>`);
    explained += line(`${scale.title}: ${scale.low}`, 8) + steps.join("") + line(scale.high, begin + 152);
    below += 1;
  }
  if (note) {
    explained += line(note, 8);
    below += 1;
  }
  const rest = more > 0 ? `<text x="8" y="${16 + rows * LEGEND_LINE}" fill="${colours.quiet}">and ${more} more</text>` : "";
  return { text: entries.join("") + rest + explained, height: below * LEGEND_LINE + 8 };
}

function pathOf(places: readonly Place[]): string {
  return places.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

/** The corners of steps that keep a value until the next place. */
function stepsOf(places: readonly Place[]): Place[] {
  return places.flatMap(([x, y], n): Place[] => (n ? [[x, places[n - 1]![1]], [x, y]] : [[x, y]]));
}
