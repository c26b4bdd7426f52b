/** Manage Job: the one change that is made to a job at a time. */

import { useState } from "preact/hooks";
import type { Job } from "../../api/answers";
import { FormDialog } from "../../parts/dialog";
import type { Undoable } from "../experiments/undo";
import { changeJob } from "./change_job";

interface Props {
  job: Job;
  jobs: Job[];
  pools: string[];
  /** Called after the change, with how to undo it if that is possible. */
  onDone: (undoable?: Undoable) => Promise<void>;
  onClose: () => void;
}

type Kind = "priority" | "weight" | "ahead_of" | "behind_of" | "resource_pool";

const TITLES: Record<Kind, string> = {
  priority: "Priority (smaller goes first)",
  weight: "Weight (its share of the slots)",
  ahead_of: "Ahead of",
  behind_of: "Behind",
  resource_pool: "Pool",
};

export function ManageJob({ job: present, jobs, pools, onDone, onClose }: Props) {
  // The fields show the job as it was when the window opened, and so the change is of that job.
  const [job] = useState(present);
  const others = jobs.filter(({ job_id: id }) => id !== job.job_id);
  const kinds = possibleChanges(job, others, pools);
  const [kind, setKind] = useState<Kind>(kinds[0] ?? "resource_pool");
  const [value, setValue] = useState(startValue(kind, job, others, pools));

  function choose(next: Kind): void {
    setKind(next);
    setValue(startValue(next, job, others, pools));
  }

  async function submit(): Promise<void> {
    const isNumber = kind === "priority" || kind === "weight";
    const neighbour = isMove(kind) ? others.find(({ job_id: id }) => id === value) : undefined;
    const change = { [kind]: isNumber ? Number(value) : value, ...(neighbour && { neighbour_revision: neighbour.revision }) };
    await onDone(await changeJob(job, change));
  }

  return (
    <FormDialog title={`Manage Job ${job.experiment_id}: ${job.name.slice(0, 80)}`} action="OK" submit={submit} onClose={onClose}>
      {kinds.length === 0
        ? <p>Nothing of this job can be changed here: its pool has the scheduler {job.scheduler}, and there is no other pool to move it to.</p>
        : (
          <>
            <label>Change{" "}
              <select value={kind} onChange={(event) => choose(event.currentTarget.value as Kind)}>
                {kinds.map((one) => <option key={one} value={one}>{TITLES[one]}</option>)}
              </select>
            </label>
            <label>To{" "}
              {kind === "priority" && <input type="number" min="1" max="99" required value={value} onInput={(event) => setValue(event.currentTarget.value)} />}
              {kind === "weight" && <input type="number" min="0" step="any" required value={value} onInput={(event) => setValue(event.currentTarget.value)} />}
              {kind !== "priority" && kind !== "weight" && (
                <select value={value} onChange={(event) => setValue(event.currentTarget.value)}>
                  {kind === "resource_pool"
                    ? pools.filter((pool) => pool !== job.resource_pool).map((pool) => <option key={pool}>{pool}</option>)
                    : others.map((other) => <option key={other.job_id} value={other.job_id}>{other.experiment_id}: {other.name.slice(0, 80)}</option>)}
                </select>
              )}
            </label>
          </>
        )}
    </FormDialog>
  );
}

function isMove(kind: Kind): boolean {
  return kind === "ahead_of" || kind === "behind_of";
}

/** The changes that have an effect with the scheduler of the pool. */
function possibleChanges(job: Job, others: Job[], pools: string[]): Kind[] {
  const kinds: Kind[] = [];
  if (job.scheduler === "priority") kinds.push("priority");
  if (job.scheduler === "fair_share") kinds.push("weight");
  if (job.scheduler === "priority" && others.length) kinds.push("ahead_of", "behind_of");
  if (pools.some((pool) => pool !== job.resource_pool)) kinds.push("resource_pool");
  return kinds;
}

function startValue(kind: Kind, job: Job, others: Job[], pools: string[]): string {
  if (kind === "priority") return String(job.priority);
  if (kind === "weight") return String(job.weight);
  if (kind === "resource_pool") return pools.find((pool) => pool !== job.resource_pool) ?? "";
  return others[0]?.job_id ?? "";
}
