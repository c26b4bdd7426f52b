/** The job queue of a pool: its order, why each job waits, and how to change that. */

import { useState } from "preact/hooks";
import type { Job } from "../../api/answers";
import { collect, get, send } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { Heading } from "../../parts/heading";
import { Badge, Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { ManageJob } from "./manage_job";

// As many as one answer has room for, with reasons of some length.
const PAGE = 200;

export function JobsView() {
  const { query } = useRoute();
  const who = useWho();
  const chosen = query.get("pool");
  const most = Math.max(PAGE, Number(query.get("most")) || PAGE);
  const [managed, setManaged] = useState<string | null>(null);
  const pools = useLive("pools", (signal) =>
    collect((cursor) => get("/api/v1/resource-pools", { query: { limit: 500, cursor }, signal })), () => "still");
  const live = useLive(`jobs ${chosen} ${most}`, (signal) =>
    collect((cursor) => get("/api/v1/jobs", { query: { resource_pool: chosen, limit: PAGE, cursor }, signal }), most));
  const names = pools.value?.items ?? [];
  const current = chosen ?? names.find(({ default_for: kinds }) => kinds.includes("compute"))?.name ?? "";

  async function moveToTop(job: Job, first: Job): Promise<void> {
    await send("patch", "/api/v1/jobs/{job_id}", { path: { job_id: job.job_id }, body: { ahead_of: first.job_id } });
    await live.refresh();
  }

  return (
    <>
      <Heading title="Job queue" />
      <div class="tools">
        <label>Pool{" "}
          <select value={current} onChange={(event) => setQuery({ pool: event.currentTarget.value, most: null })}>
            {names.map(({ name, queued }) => <option key={name} value={name}>{name} ({queued} waiting)</option>)}
          </select>
        </label>
      </div>
      <Shown live={live}>
        {({ items, next }) => {
          const job = items.find(({ job_id: id }) => id === managed);
          return items.length === 0 ? <Empty>No jobs in this pool. Ended jobs are in the lists of <a href={href("experiments")}>experiments</a> and of <a href={href("commands")}>commands</a>.</Empty> : (
            <>
              <Table label="jobs" rows={items} rowKey={({ job_id: id }) => id}
                columns={jobColumns(items, (user) => mayChange(who, user), setManaged, moveToTop)} />
              {next && (
                <div class="tools">
                  <span class="quiet">The first {items.length} jobs are shown.</span>
                  <button onClick={() => setQuery({ most: String(most * 2) })}>Show more</button>
                </div>
              )}
              {job && (
                <ManageJob job={job} jobs={items.filter(({ user }) => mayChange(who, user))} pools={names.map(({ name }) => name)}
                  onDone={live.refresh} onClose={() => setManaged(null)} />
              )}
            </>
          );
        }}
      </Shown>
    </>
  );
}

function jobColumns(
  jobs: Job[],
  isOurs: (user: string) => boolean,
  manage: (id: string) => void,
  moveToTop: (job: Job, first: Job) => Promise<void>,
): Column<Job>[] {
  const places = new Map(jobs.map(({ job_id: id }, place) => [id, place]));
  const scheduler = jobs[0]?.scheduler;
  const priority: Column<Job> = { key: "priority", title: "Priority", isNumber: true, show: (job) => job.priority };
  const weight: Column<Job> = { key: "weight", title: "Weight", isNumber: true, show: (job) => job.weight };
  return [
    { key: "place", title: "#", isNumber: true, show: ({ job_id: id }) => places.get(id)! + 1 },
    { key: "name", title: "Job", show: (job) => <a href={jobLink(job)} title={job.name.slice(0, 1000)}>{job.experiment_id}: {job.name}</a> },
    { key: "type", title: "Type", show: ({ kind }) => kind },
    { key: "state", title: "State", show: ({ condition }) => <Badge state={condition} /> },
    { key: "slots", title: "Slots held", isNumber: true, show: (job) => `${job.allocated_slots} of ${job.requested_slots}` },
    ...(scheduler === "priority" ? [priority] : scheduler === "fair_share" ? [weight] : []),
    {
      key: "waits",
      title: "Why it waits",
      show: ({ waits, waits_since_ms: since, expected_start_ms: start }) => waits
        ? (
          <>
            <span title={waits}>{waits}</span>
            {since !== null && <><br /><span class="quiet">since <Moment ms={since} /></span></>}
            {start !== null && <><br /><span class="quiet">expected to start <Moment ms={start} /></span></>}
          </>
        )
        : "–",
    },
    { key: "submitted", title: "Submitted", show: (job) => <Moment ms={job.submitted_ms} /> },
    { key: "progress", title: "Progress", isNumber: true, show: ({ progress }) => (progress === null ? "–" : `${Math.round(progress * 100)} %`) },
    { key: "user", title: "User", show: ({ user }) => user },
    {
      key: "actions",
      title: "Actions",
      show: (job) => isOurs(job.user) && (
        <>
          <button onClick={() => manage(job.job_id)} aria-label={`Manage Job ${job.experiment_id}`}>Manage Job</button>{" "}
          {scheduler === "priority" && places.get(job.job_id) !== 0 && isOurs(jobs[0]!.user) && (
            <Action label="Move to Top" run={() => moveToTop(job, jobs[0]!)} />
          )}
        </>
      ),
    },
  ];
}

/** The address of what a job is of. */
function jobLink({ kind, experiment_id: id }: Job): string {
  return href(kind === "experiment" ? "experiments" : "commands", id);
}
