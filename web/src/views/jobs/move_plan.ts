/** Moves in the queue of a priority pool: next to which job a job is moved, and why it cannot be moved. */

import type { Job } from "../../api/answers";
import type { Schemas } from "../../api/client";

type Ordered = Pick<Job, "job_id" | "experiment_id" | "user" | "priority" | "revision">;

export interface Move {
  body: Pick<Schemas["JobChangeBody"], "ahead_of" | "behind_of" | "neighbour_revision">;
  /** The job next to which it is moved. */
  anchor: Ordered;
  /** The priority after the move, which is the anchor's. */
  priority: number;
}

/**
 * Plan a move of the job at index `from` to `place`, its index after the move. Returns the reason as a
 * text if neither neighbour is a job that this user may change; the cluster would refuse the move.
 */
export function planMove<T extends Ordered>(jobs: readonly T[], from: number, place: number, isOurs: (user: string) => boolean): Move | string {
  const job = jobs[from]!;
  const others = jobs.filter((one) => one !== job);
  const [before, after] = [others[place - 1], others[place]];
  const sides = place > from ? [before, after] : [after, before];
  const allowed = sides.filter((one): one is T => one !== undefined && isOurs(one.user));
  // Next to a job of the same priority, the move leaves the priority as it is.
  const anchor = allowed.find(({ priority }) => priority === job.priority) ?? allowed[0];
  if (anchor === undefined) return refusal(sides.filter((one) => one !== undefined));
  const side = anchor === after ? "ahead_of" : "behind_of";
  return { body: { [side]: anchor.job_id, neighbour_revision: anchor.revision }, anchor, priority: anchor.priority };
}

function refusal(neighbours: readonly Ordered[]): string {
  const jobs = neighbours.map(({ experiment_id: id, user }) => `job ${id} of ${user}`).join(" and ");
  return `Next to ${jobs} only an admin can move jobs.`;
}
