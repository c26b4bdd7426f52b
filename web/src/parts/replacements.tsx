/** Replacements as bars: how long a trial did not train, phase by phase. */

import type { Schemas } from "../api/client";
import { href } from "../shell/router";
import { countText } from "./format";
import { causeText, phaseName, phasesText, phaseText, segmentsOf } from "./phases";
import "./replacements.css";
import { Moment } from "./status";
import { Table, type Column } from "./table";

type Replacement = Schemas["ReplacementView"];

type Cause = Schemas["CauseSum"];

const COLUMNS: Column<Schemas["PhaseSum"]>[] = [
  { key: "phase", title: "Phase", show: ({ phase }) => phaseName(phase) },
  { key: "count", title: "Count", isNumber: true, show: ({ count }) => count },
  { key: "median", title: "Median", isNumber: true, show: ({ median_ms: ms }) => phaseText(ms) },
  { key: "p90", title: "90 % within", isNumber: true, show: ({ p90_ms: ms }) => phaseText(ms) },
];

interface SumsProps {
  causes: Cause[];
  latest: Replacement[];
  isCut: boolean;
}

/** The sums of replacements by cause and phase, and bars of the latest replacements. */
export function ReplacementSums({ causes, latest, isCut }: SumsProps) {
  return (
    <>
      {causes.map((sum) => (
        <section key={sum.cause} aria-label={`replacements ${causeText(sum.cause)}`}>
          <h2>{countText(sum.count, "replacement")} {causeText(sum.cause)}</h2>
          {sum.unmeasured > 0 && <p class="quiet">{sum.unmeasured} more without a report of the first step.</p>}
          <Table label={`phases ${causeText(sum.cause)}`} rows={sum.phases} rowKey={({ phase }) => phase} columns={COLUMNS} />
        </section>
      ))}
      {isCut && <p class="quiet">Only the latest 1,000 replacements are summed.</p>}
      <h2>Latest</h2>
      <ReplacementBars replacements={latest} title={({ trial_id: id }) => <a href={href("trials", id)}>Trial {id}</a>} />
    </>
  );
}

interface Props {
  replacements: Replacement[];
  /** What a bar stands for, above it. */
  title: (replacement: Replacement) => preact.ComponentChildren;
}

/** A bar for each replacement, all in the scale of the longest. */
export function ReplacementBars({ replacements, title }: Props) {
  const longestMs = Math.max(...replacements.map(({ duration_ms: ms }) => ms));
  return (
    <ul class="replacements">
      {replacements.map((one) => (
        <li key={`${one.trial_id}.${one.from_epoch}.${one.epoch}`}>
          {title(one)}, <Moment ms={one.begun_ms} /> {causeText(one.cause)}: <strong>{totalText(one)}</strong>{" "}
          <span class="quiet">{one.reason}</span>
          <Bar phases={one.phases} longestMs={longestMs} />
          <Legend phases={one.phases} />
          {one.early_pull_failure && <p class="quiet">The image was not pulled early: {one.early_pull_failure}</p>}
        </li>
      ))}
    </ul>
  );
}

function totalText(one: Replacement): string {
  const attempts = one.attempts > 0 ? `, ${countText(one.attempts, "run")} without a step in between` : "";
  const total = phaseText(one.duration_ms);
  if (one.ended_ms === null) return `${total} so far${attempts}`;
  return one.has_first_step ? `${total}${attempts}` : `${total} up to the first report of training${attempts}`;
}

function Bar({ phases, longestMs }: { phases: Replacement["phases"]; longestMs: number }) {
  return (
    <svg viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label={phasesText(phases)}>
      {segmentsOf(phases, longestMs).map(({ phase, from, width, duration_ms: ms }) => (
        <rect key={phase} class={phase} x={from} width={width} height={1}>
          <title>{phaseName(phase)} {phaseText(ms)}</title>
        </rect>
      ))}
    </svg>
  );
}

function Legend({ phases }: { phases: Replacement["phases"] }) {
  return (
    <ul class="phases">
      {phases.map(({ phase, duration_ms: ms }) => (
        <li key={phase}>
          <svg viewBox="0 0 1 1" aria-hidden="true"><rect class={phase} width={1} height={1} /></svg> {phaseName(phase)} {phaseText(ms)}
        </li>
      ))}
    </ul>
  );
}
