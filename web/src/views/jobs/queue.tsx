/** The jobs of a pool, which are moved by drag or by keys if the pool's scheduler has an order. */

import { useRef, useState } from "preact/hooks";
import type { Job } from "../../api/answers";
import { messageOf } from "../../parts/format";
import { mayChange, useIsAdmin, useWho } from "../../shell/who";
import type { Undoable } from "../experiments/undo";
import { changeJob } from "./change_job";
import { JobCards } from "./job_cards";
import type { JobActions } from "./job_parts";
import { JobTable } from "./job_table";
import { ManageJob } from "./manage_job";
import { planMove } from "./move_plan";
import { useNarrow } from "./use_narrow";
import { useReorder, type Held } from "./use_reorder";

interface Props {
  jobs: Job[];
  pools: string[];
  onChanged: (undoable?: Undoable) => Promise<void>;
}

export function Queue({ jobs, pools, onChanged }: Props) {
  const who = useWho();
  const region = useRef<HTMLDivElement>(null);
  const frozen = useRef(jobs);
  const [managed, setManaged] = useState<string | null>(null);
  const [error, setError] = useState("");
  const isOurs = (user: string) => mayChange(who, user);
  const plan = (from: number, place: number) => planMove(frozen.current, from, place, isOurs);
  const { held, handle } = useReorder({
    keys: frozen.current.map(({ job_id: id }) => id),
    region,
    isAllowed: (from, place) => typeof plan(from, place) !== "string",
    onDrop: (from, place) => void move(from, place),
  });
  // While a job is held, the rows stay where this user sees them.
  if (held === null) frozen.current = jobs;
  const shown = frozen.current;

  async function move(from: number, place: number): Promise<void> {
    const planned = plan(from, place);
    if (typeof planned === "string") return setError(planned);
    setError("");
    try {
      await onChanged(await changeJob(frozen.current[from]!, planned.body));
    } catch (failure) {
      setError(messageOf(failure));
      await onChanged();
    }
  }

  const isOrdered = shown[0]!.scheduler === "priority";
  const actions: JobActions = {
    isOurs,
    manage: setManaged,
    ...(isOrdered && { handle }),
    moveToTop: (job) => {
      const from = shown.indexOf(job);
      const isPossible = isOrdered && from > 0 && typeof plan(from, 0) !== "string";
      return isPossible ? () => move(from, 0) : undefined;
    },
  };
  const job = jobs.find(({ job_id: id }) => id === managed);
  return (
    <>
      <OrderNote jobs={shown} />
      <p role="status" class={held ? "" : "hidden"}>{held && placeText(shown, held, plan)}</p>
      {error && <p class="failure" role="alert">{error}</p>}
      <div class="jobs" ref={region}>
        {useNarrow() ? <JobCards jobs={shown} actions={actions} /> : <JobTable jobs={shown} actions={actions} />}
      </div>
      {job && (
        <ManageJob job={job} jobs={jobs.filter(({ user }) => isOurs(user))} pools={pools}
          onDone={onChanged} onClose={() => setManaged(null)} />
      )}
    </>
  );
}

/** How the order is changed, or why the jobs of the pool have none. */
function OrderNote({ jobs }: { jobs: Job[] }) {
  const isAdmin = useIsAdmin();
  const { scheduler, resource_pool: pool } = jobs[0]!;
  if (scheduler === "fair_share") return <p class="quiet">The jobs of pool {pool} have no order, because the pool shares its slots by weight. Manage Job changes a weight.</p>;
  if (scheduler !== "priority") return <p class="quiet">The jobs of pool {pool} have no order to change, because the pool serves them in turns.</p>;
  return (
    <p class="quiet" id="how-to-move">
      Drag a job by its handle to move it. Or press Space on the handle, choose the place with the arrow keys, and press Space again.
      The job takes the priority of its new neighbour.
      {!isAdmin && " One of its new neighbours must be a job of yours."}
      {jobs.some(({ is_preemptible: isPreemptible }) => isPreemptible) && " A job that is moved ahead of a running job may take its slots."}
    </p>
  );
}

function placeText(jobs: readonly Job[], { key, place }: Held, plan: (from: number, place: number) => ReturnType<typeof planMove>): string {
  const from = jobs.findIndex(({ job_id: id }) => id === key);
  const text = `Job ${jobs[from]!.experiment_id}: place ${place + 1} of ${jobs.length}.`;
  if (from === place) return `${text} Escape leaves the job here.`;
  const planned = plan(from, place);
  if (typeof planned === "string") return `${text} ${planned}`;
  const priority = planned.priority === jobs[from]!.priority ? "" : ` The priority becomes ${planned.priority}.`;
  return `${text}${priority}`;
}
