import { expect, test } from "vitest";
import { parseTrigger, triggerText, type Trigger } from "./triggers";

const NONE: Trigger = { type: "", states: [], levels: [], metric: "", above: null, below: null, pattern: "" };

test.each([
  "ALARM",
  "ALARM:raised",
  "EXPERIMENT_STATE_CHANGE:COMPLETED,ERROR",
  "CUSTOM:warn,error",
  "TASK_LOG:a:b, c",
  "METRIC_THRESHOLD_EXCEEDED:loss<0.1",
  "METRIC_THRESHOLD_EXCEEDED:val acc>0.5,val acc<0.1",
])("%s is read and written unchanged", (text) => {
  expect(triggerText({ ...NONE, ...parseTrigger(text) })).toBe(text);
});

test("types and states have one spelling", () => {
  expect(parseTrigger("experiment-state-change: error")).toEqual({ type: "EXPERIMENT_STATE_CHANGE", states: ["ERROR"] });
});

test.each([
  "BEST_VALIDATION:x",
  "METRIC_THRESHOLD_EXCEEDED:loss",
  "METRIC_THRESHOLD_EXCEEDED:loss<low",
  "METRIC_THRESHOLD_EXCEEDED:a<1,b>2",
])("%s is refused", (text) => {
  expect(() => parseTrigger(text)).toThrow("has no form like");
});
