/** The lanes of a timeline: the runs and waits of trials, by trial or by slot. */

/** A bar of a lane. */
export interface Bar {
  kind: "slots" | "search" | "paused" | "starting" | "running" | "ended badly";
  fromMs: number;
  untilMs: number;
  trial: number;
  /** The number of the run; null for waits. */
  run: number | null;
  text: string;
}

export interface Lane {
  key: string;
  title: string;
  /** The machine's type and the price of the slot. */
  detail: string;
  /** The trial of the lane; null for a slot. */
  trial: number | null;
  bars: Bar[];
  /** The times at which runs of the lane were asked to stop, with the reason. */
  marks: { atMs: number; text: string }[];
}

export interface TimelineRun {
  epoch: number;
  places: { agent_id: string; slots: string[]; instance_type?: string | null; price_per_hour?: number | null }[];
  placed_ms: number;
  running_ms?: number | null;
  preempted_ms?: number | null;
  ended_ms?: number | null;
  outcome: string;
  reason: string;
}

export interface TrialTimeline {
  trial_id: number;
  runs: TimelineRun[];
  waits: { kind: "slots" | "search" | "paused"; from_ms: number; until_ms?: number | null }[];
}

// Ends of runs that did not do what the search wanted.
const BAD_ENDS = new Set(["errored", "lost"]);
const WAIT_TEXTS = { slots: "waits for slots", search: "waits for the search", paused: "paused" } as const;

/** A lane for each trial, with its waits. */
export function trialLanes(timelines: readonly TrialTimeline[], nowMs: number): Lane[] {
  return timelines.map(({ trial_id: trial, runs, waits }) => ({
    key: `trial ${trial}`,
    title: `trial ${trial}`,
    detail: "",
    trial,
    bars: [
      ...waits.map(({ kind, from_ms: fromMs, until_ms: until }): Bar => ({ kind, fromMs, untilMs: until ?? nowMs, trial, run: null, text: WAIT_TEXTS[kind] })),
      ...runs.flatMap((run) => runBars(run, trial, nowMs)),
    ].filter(({ fromMs, untilMs }) => untilMs > fromMs),
    marks: runs.flatMap(marksOf),
  }));
}

/** A lane for each slot of each machine, in the order in which they were used first. */
export function slotLanes(timelines: readonly TrialTimeline[], nowMs: number): Lane[] {
  const lanes = new Map<string, Lane & { agent: string; firstMs: number }>();
  const firstOfAgent = new Map<string, number>();
  for (const { trial_id: trial, runs } of timelines) {
    for (const run of runs) {
      for (const place of run.places) {
        const agent = place.agent_id;
        firstOfAgent.set(agent, Math.min(firstOfAgent.get(agent) ?? Infinity, run.placed_ms));
        // A command without slots has a lane of its machine.
        for (const slot of place.slots.length ? place.slots : [""]) {
          const key = `${agent} ${slot}`;
          const lane = lanes.get(key) ?? { key, title: `${agent}${slot && ` slot ${slot}`}`, detail: priceText(place), trial: null, bars: [], marks: [], agent, firstMs: run.placed_ms };
          lane.bars.push(...runBars(run, trial, nowMs).filter(({ fromMs, untilMs }) => untilMs > fromMs));
          lane.marks.push(...marksOf(run));
          lanes.set(key, lane);
        }
      }
    }
  }
  return [...lanes.values()]
    .sort((a, b) => firstOfAgent.get(a.agent)! - firstOfAgent.get(b.agent)! || a.agent.localeCompare(b.agent) || a.key.localeCompare(b.key, undefined, { numeric: true }))
    .map(({ key, title, detail, trial, bars, marks }) => ({ key, title, detail, trial, bars, marks }));
}

/** A run as one bar while it starts and one while it trains. */
function runBars(run: TimelineRun, trial: number, nowMs: number): Bar[] {
  const end = run.ended_ms ?? nowMs;
  const start = run.running_ms ?? end;
  const machines = run.places.map(machineText).join("; ");
  const outcome = run.outcome || (run.ended_ms === null || run.ended_ms === undefined ? "running" : "ended");
  const text = `run ${run.epoch} on ${machines}: ${outcome}${run.reason && `, ${run.reason}`}`;
  const kind = BAD_ENDS.has(run.outcome) ? "ended badly" : "running";
  return [
    { kind: "starting", fromMs: run.placed_ms, untilMs: start, trial, run: run.epoch, text: `${text}, starting` },
    { kind, fromMs: start, untilMs: end, trial, run: run.epoch, text },
  ];
}

function marksOf({ preempted_ms: atMs, reason }: TimelineRun): Lane["marks"] {
  return atMs === null || atMs === undefined ? [] : [{ atMs, text: `asked to stop${reason && `: ${reason}`}` }];
}

function machineText(place: TimelineRun["places"][number]): string {
  const detail = priceText(place);
  return `${place.agent_id}${place.slots.length ? ` slot ${place.slots.join(", ")}` : ""}${detail && ` (${detail})`}`;
}

/** The type of a machine and the price of each of the run's slots. */
function priceText({ slots, instance_type: type, price_per_hour: price }: TimelineRun["places"][number]): string {
  const each = price && slots.length ? `$${Number((price / slots.length).toPrecision(3))}/h a slot` : "";
  return [type ?? "", each].filter(Boolean).join(", ");
}

/** The first and the last time of the lanes; null without bars. */
export function timeSpan(lanes: readonly Lane[]): { fromMs: number; untilMs: number } | null {
  let [fromMs, untilMs] = [Infinity, -Infinity];
  for (const { bars } of lanes) {
    for (const bar of bars) [fromMs, untilMs] = [Math.min(fromMs, bar.fromMs), Math.max(untilMs, bar.untilMs)];
  }
  return fromMs < untilMs ? { fromMs, untilMs } : null;
}
