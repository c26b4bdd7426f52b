/** A button that opens Manage Job for an experiment or command which is in the queue. */

import { useState } from "preact/hooks";
import type { Job } from "../../api/answers";
import { collect, get } from "../../api/client";
import { messageOf } from "../../parts/format";
import { ManageJob } from "./manage_job";

// Jobs that one can be put ahead of or behind.
const OTHERS_MAX = 200;

interface Found {
  job: Job;
  jobs: Job[];
  pools: string[];
}

export function ManageJobButton({ experiment, onDone }: { experiment: number; onDone: () => Promise<void> }) {
  const [found, setFound] = useState<Found | null>(null);
  const [error, setError] = useState("");

  async function open(): Promise<void> {
    setError("");
    try {
      setFound(await loadQueue(experiment));
    } catch (failure) {
      setError(messageOf(failure));
    }
  }

  return (
    <>
      <button onClick={() => void open()}>Manage Job</button>
      {error && <span class="failure" role="alert">{error}</span>}
      {found && <ManageJob {...found} onDone={onDone} onClose={() => setFound(null)} />}
    </>
  );
}

async function loadQueue(experiment: number): Promise<Found> {
  const job = await get("/api/v1/jobs/{job_id}", { path: { job_id: String(experiment) } });
  const [jobs, pools] = await Promise.all([
    get("/api/v1/jobs", { query: { resource_pool: job.resource_pool, limit: OTHERS_MAX } }),
    collect((cursor) => get("/api/v1/resource-pools", { query: { limit: 500, cursor } })),
  ]);
  return { job, jobs: jobs.items, pools: pools.items.map(({ name }) => name) };
}
