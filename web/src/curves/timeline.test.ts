import { expect, test } from "vitest";
import { slotLanes, timeSpan, trialLanes, type TrialTimeline } from "./timeline";

const machine = (agent: string, slots: string[]) => ({ agent_id: agent, slots, instance_type: "g5.12xlarge", price_per_hour: 3 });
const timelines: TrialTimeline[] = [
  {
    trial_id: 7,
    runs: [
      { epoch: 1, places: [machine("i-1", ["0", "1"])], placed_ms: 10, running_ms: 20, preempted_ms: 40, ended_ms: 50, outcome: "preempted", reason: "a job of higher priority" },
      { epoch: 2, places: [machine("i-2", ["0"])], placed_ms: 60, running_ms: null, ended_ms: null, outcome: "", reason: "" },
    ],
    waits: [{ kind: "slots", from_ms: 0, until_ms: 10 }, { kind: "slots", from_ms: 50, until_ms: 60 }],
  },
];

test("a trial's lane has its waits, the start and the training of each run", () => {
  const [lane] = trialLanes(timelines, 100);
  expect(lane!.bars.map(({ kind, fromMs, untilMs }) => [kind, fromMs, untilMs])).toEqual([
    ["slots", 0, 10], ["slots", 50, 60], ["starting", 10, 20], ["running", 20, 50], ["starting", 60, 100],
  ]);
  expect(lane!.marks).toEqual([{ atMs: 40, text: "asked to stop: a job of higher priority" }]);
});

test("each slot of a machine has a lane, with its share of the price", () => {
  const lanes = slotLanes(timelines, 100);
  // $3 for two slots are $1.50 each.
  expect(lanes.map(({ title, detail }) => [title, detail])).toEqual([
    ["i-1 slot 0", "g5.12xlarge, $1.5/h a slot"], ["i-1 slot 1", "g5.12xlarge, $1.5/h a slot"], ["i-2 slot 0", "g5.12xlarge, $3/h a slot"],
  ]);
  expect(lanes[2]!.bars.map(({ trial, run }) => [trial, run])).toEqual([[7, 2]]);
});

test("failed and lost runs are marked", () => {
  const lost: TrialTimeline = { trial_id: 8, waits: [], runs: [{ epoch: 1, places: [machine("i-1", ["0"])], placed_ms: 0, running_ms: 5, ended_ms: 9, outcome: "lost", reason: "no heartbeat" }] };
  expect(trialLanes([lost], 10)[0]!.bars.map(({ kind }) => kind)).toEqual(["starting", "ended badly"]);
});

test("the span covers all bars", () => {
  expect(timeSpan(trialLanes(timelines, 100))).toEqual({ fromMs: 0, untilMs: 100 });
  expect(timeSpan([])).toBeNull();
});
