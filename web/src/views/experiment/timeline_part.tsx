/** The timeline of a search: the runs of trials on slots, with waits, stops, machines and prices. */

import type { ExperimentWhole } from "../../api/answers";
import { collect, get } from "../../api/client";
import { ChartFrame } from "../../curves/chart_frame";
import { rowsCsv } from "../../curves/save_chart";
import { SvgTip } from "../../curves/svg_tip";
import { axisTicks } from "../../curves/ticks";
import { slotLanes, timeSpan, trialLanes, type Bar, type Lane } from "../../curves/timeline";
import { useWidth } from "../../curves/use_width";
import { markOf, motionOfParts } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { countText, durationText, momentText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { href, setQuery, useRoute } from "../../shell/router";
import "./timeline.css";

const PAGE = 50;
const TRIALS_FIRST = 100;
const TRIALS_MAX = 1000;
// With more lanes, the page would be busy with the picture.
const LANES_MAX = 400;
const [WIDTH_MIN, RIGHT, TOP, BOTTOM] = [560, 12, 6, 40];

const KINDS: readonly (readonly [Bar["kind"], string])[] = [
  ["running", "running"],
  ["starting", "starting"],
  ["ended badly", "run that failed or lost its machine"],
  ["slots", "waits for slots"],
  ["search", "waits for the search"],
  ["paused", "paused"],
];

export function TimelinePart({ experiment }: { experiment: ExperimentWhole }) {
  const { query } = useRoute();
  const id = experiment.id!;
  const isBySlot = query.get("lanes") === "slots";
  const most = query.get("all") === "1" ? TRIALS_MAX : TRIALS_FIRST;
  const live = useLive(
    `timelines ${id} ${most}`,
    (signal) => collect((cursor) => get("/api/v1/experiments/{experiment_id}/timelines", { path: { experiment_id: id }, query: { limit: PAGE, cursor }, signal }), most),
    // The cluster reads journals for this picture, which is worth no more than a look now and again.
    () => (motionOfParts(experiment) === "moving" ? "resting" : "still"),
    markOf(experiment),
  );
  return (
    <>
      <div class="tools">
        <div class="states" role="group" aria-label="lanes">
          <button aria-pressed={!isBySlot} onClick={() => setQuery({ lanes: null })}>By trial</button>
          <button aria-pressed={isBySlot} onClick={() => setQuery({ lanes: "slots" })}>By slot</button>
        </div>
        {live.value?.next && most < TRIALS_MAX && <button onClick={() => setQuery({ all: "1" })}>Load up to {TRIALS_MAX} trials</button>}
      </div>
      <Shown live={live}>
        {({ items, next }) => {
          const nowMs = Math.max(Date.now(), ...items.flatMap(({ runs }) => runs.map(({ placed_ms: placed }) => placed)));
          const lanes = isBySlot ? slotLanes(items, nowMs) : trialLanes(items, nowMs);
          if (!timeSpan(lanes)) return <Empty>No trial has {isBySlot ? "had slots" : "begun"} yet.</Empty>;
          return (
            <>
              <p class="quiet">
                {next ? `The first ${countText(items.length, "trial")}` : countText(items.length, "trial")}
                {lanes.length > LANES_MAX && `; the first ${LANES_MAX} of ${lanes.length} lanes`}
                {items.some(({ is_cut: isCut }) => isCut) && "; later runs of trials with very many events are left out"}. A triangle marks a request to stop.
              </p>
              <Timeline lanes={lanes.slice(0, LANES_MAX)} isBySlot={isBySlot} title={`timeline of experiment ${id}`} />
            </>
          );
        }}
      </Shown>
    </>
  );
}

function Timeline({ lanes, isBySlot, title }: { lanes: Lane[]; isBySlot: boolean; title: string }) {
  const [measured, ref] = useWidth(900);
  const width = Math.max(WIDTH_MIN, measured - 2);
  const height = TOP + lanes.length * laneHeight(isBySlot) + BOTTOM;
  const { fromMs, untilMs } = timeSpan(lanes)!;
  const left = isBySlot ? 190 : 90;
  const toX = (ms: number) => left + ((ms - fromMs) / (untilMs - fromMs)) * (width - left - RIGHT);
  const ticks = axisTicks("elapsed", 0, (untilMs - fromMs) / 1000, Math.round((width - left) / 110));
  const toTickX = (seconds: number) => toX(fromMs + 1000 * seconds);
  return (
    <ChartFrame name={isBySlot ? "Slots over time" : "Trials over time"} title={title} csv={() => timelineCsv(lanes)}>
      <ul class="kinds" aria-label="kinds of bars">
        {KINDS.filter(([kind]) => lanes.some(({ bars }) => bars.some((bar) => bar.kind === kind))).map(([kind, text]) => <li key={kind}><svg class="swatch timeline" width="14" height="10" aria-hidden="true"><rect class={classOf(kind)} width="14" height={waitHeight(kind) ?? 10} y={isWait(kind) ? 3 : 0} /></svg> {text}</li>)}
      </ul>
      <SvgTip>
        <div class="scroll" role="region" aria-label={title} tabIndex={0} ref={ref}>
          <svg class="timeline picture" width={width} height={height} role="group" aria-label={title}>
            {ticks.map(({ at, text }) => (
              <g key={at}>
                <line class="grid" x1={toTickX(at)} x2={toTickX(at)} y1={TOP} y2={height - BOTTOM} />
                <text x={toTickX(at)} y={height - BOTTOM + 15} text-anchor="middle">{text}</text>
              </g>
            ))}
            {lanes.map((lane, n) => <LaneBars key={lane.key} lane={lane} y={TOP + n * laneHeight(isBySlot)} width={width} isBySlot={isBySlot} toX={toX} />)}
            <text x={(left + width) / 2} y={height - 6} text-anchor="middle">time since {momentText(fromMs)}</text>
          </svg>
        </div>
      </SvgTip>
    </ChartFrame>
  );
}

function laneHeight(isBySlot: boolean): number {
  return isBySlot ? 32 : 22;
}

function LaneBars({ lane, y, width, isBySlot, toX }: { lane: Lane; y: number; width: number; isBySlot: boolean; toX: (ms: number) => number }) {
  const tall = laneHeight(isBySlot) - 8;
  return (
    <g>
      <line class="grid" x1={4} x2={width} y1={y + tall + 5} y2={y + tall + 5} />
      {lane.trial === null
        ? <text x={4} y={y + (lane.detail ? 11 : tall / 2 + 5)}>{lane.title}</text>
        : <a href={href("trials", lane.trial)}><text x={4} y={y + tall / 2 + 5}>{lane.title}</text></a>}
      {lane.detail && <text class="detail" x={4} y={y + 24}>{lane.detail}</text>}
      {lane.bars.map((bar, n) => <BarShape key={n} bar={bar} y={y} tall={tall} toX={toX} isNamed={isBySlot} />)}
      {lane.marks.map(({ atMs, text }, n) => <path key={`mark ${n}`} class="mark" data-tip={`${lane.title}\n${text}\n${momentText(atMs)}`} d={`M${toX(atMs) - 4} ${y - 1}h8l-4 7z`} />)}
    </g>
  );
}

function BarShape({ bar, y, tall, toX, isNamed }: { bar: Bar; y: number; tall: number; toX: (ms: number) => number; isNamed: boolean }) {
  const { kind, fromMs, untilMs, trial, text } = bar;
  const [left, size] = [toX(fromMs), Math.max(1, toX(untilMs) - toX(fromMs))];
  const label = `trial ${trial}: ${text}, ${durationText(untilMs - fromMs)}`;
  const tip = `trial ${trial}\n${text}\n${momentText(fromMs)}, ${durationText(untilMs - fromMs)}`;
  if (isWait(kind)) return <rect class={classOf(kind)} data-tip={tip} x={left} width={size} y={y + tall / 2} height={waitHeight(kind)} />;
  return (
    <a href={href("trials", trial)} aria-label={label}>
      <rect class={classOf(kind)} data-tip={tip} x={left} width={size} y={y + 2} height={tall} rx={2} />
      {isNamed && kind !== "starting" && size > 9 * String(trial).length + 8 && <text class="inside" x={left + size / 2} y={y + tall / 2 + 6} text-anchor="middle">{trial}</text>}
    </a>
  );
}

function isWait(kind: Bar["kind"]): boolean {
  return kind === "slots" || kind === "search" || kind === "paused";
}

/** Waits that cost time on slots are drawn stronger. */
function waitHeight(kind: Bar["kind"]): number | undefined {
  if (!isWait(kind)) return undefined;
  return kind === "slots" ? 4 : 2;
}

function classOf(kind: Bar["kind"]): string {
  return kind === "ended badly" ? "bad" : kind;
}

function timelineCsv(lanes: Lane[]): string {
  const rows = lanes.flatMap(({ title, detail, bars }) => bars.map(({ kind, fromMs, untilMs, trial, run, text }) =>
    [title, detail, trial, run, kind, new Date(fromMs).toISOString(), new Date(untilMs).toISOString(), text]));
  return rowsCsv(["lane", "machine", "trial", "run", "kind", "from", "until", "description"], rows);
}
