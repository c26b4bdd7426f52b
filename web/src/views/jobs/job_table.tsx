/** The queue as a table. */

import type { Job } from "../../api/answers";
import { Badge } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { BestMetric } from "../experiments/best_metric";
import { JobButtons, JobLink, JobOrigin, JobSentence, MoveHandle, progressText, type JobActions } from "./job_parts";

export function JobTable({ jobs, actions }: { jobs: Job[]; actions: JobActions }) {
  return <Table label="jobs" rows={jobs} rowKey={({ job_id: id }) => id} columns={jobColumns(jobs, actions)} />;
}

function jobColumns(jobs: Job[], actions: JobActions): Column<Job>[] {
  const places = new Map(jobs.map(({ job_id: id }, place) => [id, place]));
  const scheduler = jobs[0]?.scheduler;
  const move: Column<Job> = { key: "move", title: "Move", show: (job) => <MoveHandle job={job} actions={actions} /> };
  const priority: Column<Job> = { key: "priority", title: "Priority", isNumber: true, show: (job) => job.priority };
  const weight: Column<Job> = { key: "weight", title: "Weight", isNumber: true, show: (job) => job.weight };
  return [
    ...(actions.handle ? [move] : []),
    { key: "place", title: "#", isNumber: true, show: ({ job_id: id }) => places.get(id)! + 1 },
    { key: "name", title: "Job", show: (job) => <><span class="job"><JobLink job={job} /></span><span class="job"><JobOrigin job={job} /></span></> },
    { key: "state", title: "State", show: ({ condition }) => <Badge state={condition} /> },
    { key: "waits", title: "Why it waits", show: (job) => <span class="job-why"><JobSentence job={job} /></span> },
    { key: "slots", title: "Slots held", isNumber: true, show: (job) => `${job.allocated_slots} of ${job.requested_slots}` },
    ...(scheduler === "priority" ? [priority] : scheduler === "fair_share" ? [weight] : []),
    { key: "progress", title: "Progress", isNumber: true, show: progressText },
    { key: "best", title: "Best", isNumber: true, show: (job) => <BestMetric of={job} /> },
    { key: "actions", title: "Actions", show: (job) => <JobButtons job={job} actions={actions} /> },
  ];
}
