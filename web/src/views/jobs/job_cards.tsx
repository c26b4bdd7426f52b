/** The queue as a list of cards, in a window as narrow as a phone's. */

import type { Job } from "../../api/answers";
import { Badge } from "../../parts/status";
import { BestMetric } from "../experiments/best_metric";
import { JobButtons, JobLink, JobOrigin, JobSentence, MoveHandle, progressText, type JobActions } from "./job_parts";

export function JobCards({ jobs, actions }: { jobs: Job[]; actions: JobActions }) {
  return (
    <ol class="job-cards" aria-label="jobs">
      {jobs.map((job) => (
        <li key={job.job_id} data-key={job.job_id} class="card">
          <p class="head"><JobLink job={job} /> <Badge state={job.condition} /></p>
          <p><JobSentence job={job} /></p>
          <dl class="figures">
            <div><dt>Progress</dt><dd>{progressText(job)}</dd></div>
            <div><dt>Best</dt><dd><BestMetric of={job} /></dd></div>
          </dl>
          <p><JobOrigin job={job} /></p>
          <div class="actions"><MoveHandle job={job} actions={actions} /><JobButtons job={job} actions={actions} /></div>
        </li>
      ))}
    </ol>
  );
}
