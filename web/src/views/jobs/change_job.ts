/** Changes of a job that can be undone, as long as nobody else changes the job. */

import type { Job } from "../../api/answers";
import { send, type Schemas } from "../../api/client";
import { shortText } from "../../parts/format";
import type { Undoable } from "../experiments/undo";

type Change = Partial<Schemas["JobChangeBody"]>;

const ROUTE = "/api/v1/jobs/{job_id}";

/**
 * Change a job if it is as this page shows it. A job that somebody has changed meanwhile stays as it
 * is, and the error says so. Returns nothing for a change to another pool, which cannot be undone.
 */
export async function changeJob(job: Job, change: Change): Promise<Undoable | undefined> {
  const path = { job_id: job.job_id };
  const isMove = change.resource_pool != null;
  const after = await send("patch", ROUTE, { path, body: isMove ? change : { ...change, revision: job.revision } });
  if (isMove || after.revision === job.revision) return undefined;
  const former: Change = job.position === null
    ? { weight: job.weight }
    : { place: { priority: job.priority, position: job.position } };
  return {
    text: changeText(job, after),
    undo: async () => void (await send("patch", ROUTE, { path, body: { ...former, revision: after.revision } })),
  };
}

/** What a change did, such as `Moved job 3 (digits). Its priority is 10, not 42 as before.` */
export function changeText(before: Job, after: Job): string {
  const name = `job ${before.experiment_id} (${shortText(before.name, 40)})`;
  if (after.weight !== before.weight) return `The weight of ${name} is ${after.weight}, not ${before.weight} as before.`;
  const priority = after.priority === before.priority ? "" : `priority is ${after.priority}, not ${before.priority} as before.`;
  if (priority && after.position === before.position) return `The priority of ${name} is ${after.priority}, not ${before.priority} as before.`;
  return `Moved ${name}.${priority && ` Its ${priority}`}`;
}
