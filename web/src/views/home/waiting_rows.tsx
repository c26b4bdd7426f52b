/** Active experiments without slots, with the queue's reasons. */

import type { Job } from "../../api/answers";
import { get, type Schemas } from "../../api/client";
import { Moment } from "../../parts/status";
import { href } from "../../shell/router";

interface Active {
  experiment: Schemas["Experiment"];
  /** Undefined if the experiment has ended meanwhile. */
  job: Job | undefined;
}

export function WaitingRows({ items }: { items: Active[] }) {
  return (
    <ul class="rows">
      {items.map(({ experiment: one, job }) => (
        <li key={one.id}>
          <span class="row-name"><a href={href("experiments", one.id!)}>{one.name || `experiment ${one.id}`}</a> <span class="quiet">{one.id} · {one.user}</span></span>
          <span class="row-time"><a href={`${href("jobs")}?pool=${encodeURIComponent(one.resource_pool)}`}>queue of {one.resource_pool}</a></span>
          <span class="row-text">
            {job?.waits ? `${job.waits}.` : "The scheduler has not looked at this experiment yet."}
            {job && job.expected_start_ms !== null && <span class="quiet"> Expected to start <Moment ms={job.expected_start_ms} />.</span>}
          </span>
        </li>
      ))}
    </ul>
  );
}

/** Return the job of an experiment, or undefined if the experiment has ended meanwhile. */
export async function findJob(id: string, signal: AbortSignal): Promise<Job | undefined> {
  try {
    return await get("/api/v1/jobs/{job_id}", { path: { job_id: id }, signal });
  } catch (error) {
    signal.throwIfAborted();
    if ((error as { status?: number }).status === 404) return undefined;
    throw error;
  }
}
