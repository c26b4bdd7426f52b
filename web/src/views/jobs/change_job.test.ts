import { expect, test } from "vitest";
import type { Job } from "../../api/answers";
import { changeText } from "./change_job";

const before = { experiment_id: 3, name: "digits", priority: 42, weight: 1, position: "7" } as Job;

test("the message about a change has the former values", () => {
  expect(changeText(before, { ...before, position: "5" })).toBe("Moved job 3 (digits).");
  expect(changeText(before, { ...before, position: "5", priority: 10 })).toBe("Moved job 3 (digits). Its priority is 10, not 42 as before.");
  expect(changeText(before, { ...before, priority: 10 })).toBe("The priority of job 3 (digits) is 10, not 42 as before.");
  expect(changeText(before, { ...before, weight: 2.5 })).toBe("The weight of job 3 (digits) is 2.5, not 1 as before.");
});
