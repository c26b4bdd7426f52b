/** The legend and the table of a chart's curves. */

import { useEffect, useRef, useState } from "preact/hooks";
import { numberText } from "../parts/format";
import { Table, type Column } from "../parts/table";
import { colourOf, dashesOf, type Curve } from "./curve";

interface Props {
  curves: readonly Curve[];
  hidden: ReadonlySet<string>;
  toggle: (label: string) => void;
  /** The number of the curve that the pointer is on. */
  lit: number | null;
  isDark: boolean;
  valueOf: (curve: number) => number | null;
  /** Called when the pointer is on an entry, and with null when it has left. */
  onPoint: (curve: number | null) => void;
}

export function CurveLegend({ curves, hidden, toggle, lit, isDark, valueOf, onPoint }: Props) {
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => {
    const entry = lit === null ? undefined : list.current?.children[lit] as HTMLElement | undefined;
    // Only the list scrolls, never the page below the pointer.
    if (entry && list.current) showEntry(list.current, entry);
  }, [lit]);
  return (
    <ul class={`legend${lit === null ? "" : " has-lit"}`} aria-label="curves" ref={list}>
      {curves.map((curve, n) => {
        const isHidden = hidden.has(curve.label);
        return (
          <li key={curve.label} class={lit === n ? "lit" : ""} onMouseEnter={() => onPoint(n)} onMouseLeave={() => onPoint(null)}>
            <button aria-pressed={!isHidden} title={isHidden ? "show the curve" : "hide the curve"} onClick={() => toggle(curve.label)}>
              <Swatch curve={curve} place={n} isDark={isDark} />{" "}
              {curve.label}
            </button>{" "}
            <span class="value">{numberText(valueOf(n))}</span>{" "}
            {curve.href && <a href={curve.href} aria-label={`open ${curve.label}`}>→</a>}
          </li>
        );
      })}
    </ul>
  );
}

function Swatch({ curve, place, isDark }: { curve: Curve; place: number; isDark: boolean }) {
  const colour = colourOf(curve, place, isDark);
  return (
    <svg class="swatch" width="18" height="8" aria-hidden="true">
      {curve.kind === "points"
        ? <circle cx="9" cy="4" r="3.5" fill={colour} />
        : <line x1="0" x2="18" y1="4" y2="4" stroke={colour} stroke-width="3" stroke-dasharray={dashesOf(curve, place).join(" ")} />}
    </svg>
  );
}

function showEntry(list: HTMLElement, entry: HTMLElement): void {
  const top = entry.offsetTop;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + entry.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top + entry.offsetHeight - list.clientHeight;
}

const NUMBERS: Column<Curve>[] = [
  { key: "curve", title: "Curve", show: ({ label, href }) => (href ? <a href={href}>{label}</a> : label), value: ({ label }) => label },
  { key: "points", title: "Points", isNumber: true, show: ({ points }) => points.length, value: ({ points }) => points.length },
  ...(["minimum", "maximum", "latest"] as const).map((which): Column<Curve> => ({
    key: which,
    title: which[0]!.toUpperCase() + which.slice(1),
    isNumber: true,
    show: ({ points }) => numberText(boundOf(points, which)),
    value: ({ points }) => boundOf(points, which),
  })),
];

/** What the curves show, for those who do not see them. */
export function CurveTable({ label, curves }: { label: string; curves: Curve[] }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>As a table</summary>
      {isOpen && <Table label={`curves of ${label}`} rows={curves} rowKey={(curve) => curve.label} columns={NUMBERS} />}
    </details>
  );
}

function boundOf(points: Curve["points"], which: "minimum" | "maximum" | "latest"): number | null {
  const values = points.flatMap(([, y]) => (y === null ? [] : [y]));
  if (values.length === 0) return null;
  if (which === "latest") return values.at(-1)!;
  return values.reduce((a, b) => (which === "minimum" ? Math.min(a, b) : Math.max(a, b)));
}
