import { describe, expect, test } from "vitest";
import { causeText, phaseName, phasesText, phaseText, segmentsOf } from "./phases";

const PHASES = [
  { phase: "checkpoint", duration_ms: 2_000 },
  { phase: "queue", duration_ms: 0 },
  { phase: "start", duration_ms: 6_000 },
];

describe("segments", () => {
  test("follow each other in percent of the longest bar", () => {
    // 2 s and 6 s of 10 s.
    expect(segmentsOf(PHASES, 10_000)).toEqual([
      { phase: "checkpoint", duration_ms: 2_000, from: 0, width: 20 },
      { phase: "start", duration_ms: 6_000, from: 20, width: 60 },
    ]);
  });

  test("are missing without a duration", () => {
    expect(segmentsOf(PHASES.slice(1, 2), 0)).toEqual([]);
  });
});

test("texts name phases and causes, unknown ones too", () => {
  expect(phaseName("first_step")).toBe("first step");
  expect(phaseName("thaw")).toBe("thaw");
  expect(causeText("notice")).toBe("after a notice");
  expect(causeText("flood")).toBe("flood");
});

test("durations below ten seconds have a decimal", () => {
  expect(phaseText(1_240)).toBe("1.2 s");
  expect(phaseText(95_000)).toBe("1 min 35 s");
  expect(phasesText(PHASES)).toBe("checkpoint 2.0 s, queue 0.0 s, start 6.0 s");
});
