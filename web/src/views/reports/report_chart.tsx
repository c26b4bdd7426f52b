/** A chart of a report: the page's own chart, live, or what is wrong with its block. */

import { createContext } from "preact";
import { useContext, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Loading } from "../../parts/status";
import { Fence } from "../../shell/fence";
import { SettingsContext, href } from "../../shell/router";
import { KINDS, readChart, type ChartSpec, type Kind } from "./chart_block";
import { ChartBody } from "./chart_kinds";

interface Props {
  /** The lines of the block. */
  text: string;
  /** The number of the first one in the report. */
  line: number;
  /** Called when a setting is changed; without it, changes last as long as the chart is shown. */
  onSettings?: (kind: Kind, changes: Record<string, string | null>) => void;
}

/** Whether charts out of sight are drawn, too. */
export const AllDrawn = createContext(false);

// How far below the window a chart is drawn before it comes into sight.
const MARGIN = "600px";

export function ReportChart({ text, line, onSettings }: Props) {
  const { spec, problems } = useMemo(() => readChart(text, line), [text, line]);
  if (spec) return <SettledChart key={`${spec.kind} ${spec.experiments} ${spec.filter}`} spec={spec} {...(onSettings && { onSettings })} />;
  return (
    <div class="report-chart problems" role="group" aria-label="block with errors">
      <p><strong>This chart cannot be drawn.</strong></p>
      <ul>{problems.map((problem, n) => <li key={n}>Line {problem.line}: {problem.text}</li>)}</ul>
    </div>
  );
}

function SettledChart({ spec, onSettings }: { spec: ChartSpec; onSettings?: Props["onSettings"] }) {
  const [changes, setChanges] = useState<Record<string, string | null>>({});
  const [isAdjusted, setAdjusted] = useState(false);
  const [isNear, place] = useNear();
  const own = JSON.stringify(spec.settings);
  const query = useMemo(() => {
    const settings = Object.entries({ ...(spec.kind === "contour" && { plane: "contours" }), ...spec.settings, ...changes }).filter((one): one is [string, string] => one[1] !== null && one[1] !== "");
    return new URLSearchParams(settings);
  }, [own, changes]);
  const set = (some: Record<string, string | null>) => {
    // Elsewhere cells are the usual plane, and no setting.
    const whole = spec.kind === "contour" && "plane" in some ? { ...some, plane: some["plane"] ?? "cells" } : some;
    // What the text keeps has its place there alone: the text may be edited next.
    const passing = Object.entries(whole).filter(([name]) => !onSettings || !Object.hasOwn(KINDS[spec.kind].options, name));
    setChanges((before) => ({ ...before, ...Object.fromEntries(passing) }));
    onSettings?.(spec.kind, whole);
  };
  const title = spec.title || KINDS[spec.kind].title;
  const hasSettings = Object.keys(KINDS[spec.kind].options).length > 0 && !["scatter", "importance", "table"].includes(spec.kind);
  return (
    <section class={`report-chart${isAdjusted ? " adjusted" : ""}`} aria-label={title} ref={place}>
      <div class="report-chart-head">
        <strong>{title}</strong>
        <span class="chart-tools" role="group" aria-label={`tools of ${title}`}>
          {hasSettings && <button aria-pressed={isAdjusted} aria-label={`settings of ${title}`} onClick={() => setAdjusted(!isAdjusted)}>Settings</button>}
          <a href={sourceLink(spec, query)} aria-label={`open ${title}`}>Open</a>
        </span>
      </div>
      {isNear
        ? <SettingsContext.Provider value={{ query, set }}><Fence><ChartBody spec={spec} /></Fence></SettingsContext.Provider>
        : <div class="report-chart-far"><Loading /></div>}
    </section>
  );
}

/** Whether an element has been in sight, or near it; and the reference for the element. */
function useNear() {
  const place = useRef<HTMLElement>(null);
  const isWanted = useContext(AllDrawn);
  const [wasNear, setNear] = useState(false);
  useEffect(() => {
    if (wasNear) return undefined;
    const observer = new IntersectionObserver((entries) => { if (entries.some((one) => one.isIntersecting)) setNear(true); }, { rootMargin: MARGIN });
    observer.observe(place.current!);
    return () => observer.disconnect();
  }, [wasNear]);
  return [wasNear || isWanted, place] as const;
}

const PICTURES: Partial<Record<Kind, string>> = { curves: "curves", history: "history", pareto: "pareto" };

/** The view that shows the same with the same settings. */
function sourceLink({ kind, experiments, filter }: ChartSpec, query: URLSearchParams): string {
  const [first] = experiments;
  if (filter || first === undefined) return `${href("experiments")}?${new URLSearchParams({ filter })}`;
  if (experiments.length > 1) return `${href("compare")}?${new URLSearchParams({ ...Object.fromEntries(query), experiments: experiments.join(","), "trials-of": "all" })}`;
  const picture = PICTURES[kind];
  if (picture) return `${href("experiments", first, "curves")}?${new URLSearchParams({ ...Object.fromEntries(query), picture })}`;
  if (kind === "table" || kind === "best") return href("experiments", first);
  return `${href("experiments", first, "hyperparameters")}?${query}`;
}
