import { expect, test } from "vitest";
import { planMove } from "./move_plan";

const job = (id: number, user = "ada", priority = 42) => ({ job_id: `job-${id}`, experiment_id: id, user, priority, revision: `r${id}` });
const isAda = (user: string) => user === "ada";

test("a job is moved up ahead of the job in its new place", () => {
  const jobs = [job(1), job(2), job(3)];
  expect(planMove(jobs, 2, 0, isAda)).toMatchObject({ body: { ahead_of: "job-1", neighbour_revision: "r1" }, priority: 42 });
  expect(planMove(jobs, 2, 1, isAda)).toMatchObject({ body: { ahead_of: "job-2" } });
});

test("a job is moved down behind the job in its new place", () => {
  const jobs = [job(1), job(2), job(3)];
  expect(planMove(jobs, 0, 2, isAda)).toMatchObject({ body: { behind_of: "job-3", neighbour_revision: "r3" } });
  expect(planMove(jobs, 0, 1, isAda)).toMatchObject({ body: { behind_of: "job-2" } });
});

test("a neighbour of the same priority keeps the priority", () => {
  // Between 1 and 2: behind job 1 the priority stays 10, ahead of job 2 it would be 50.
  const jobs = [job(1, "ada", 10), job(2, "ada", 50), job(3, "ada", 10)];
  expect(planMove(jobs, 2, 1, isAda)).toMatchObject({ body: { behind_of: "job-1" }, priority: 10 });
  const others = [job(1, "ada", 10), job(2, "ada", 50), job(3, "ada", 60)];
  expect(planMove(others, 2, 1, isAda)).toMatchObject({ body: { ahead_of: "job-2" }, priority: 50 });
});

test("the job of another user is no neighbour to move to", () => {
  const jobs = [job(1, "bob"), job(2), job(3, "bob"), job(4)];
  expect(planMove(jobs, 3, 1, isAda)).toMatchObject({ body: { ahead_of: "job-2" } });
  expect(planMove(jobs, 3, 2, isAda)).toMatchObject({ body: { behind_of: "job-2" } });
  expect(planMove(jobs, 3, 0, isAda)).toBe("Next to job 1 of bob only an admin can move jobs.");
  expect(planMove([job(1, "bob"), job(2, "eve"), job(3)], 2, 1, isAda)).toBe(
    "Next to job 2 of eve and job 1 of bob only an admin can move jobs.",
  );
});
