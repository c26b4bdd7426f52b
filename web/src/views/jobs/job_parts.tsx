/** The parts of a job that the table and the cards of the queue show. */

import type { Job } from "../../api/answers";
import { Action } from "../../parts/dialog";
import { Moment } from "../../parts/status";
import { href } from "../../shell/router";
import { jobSentence, sentencePeriodMs } from "./job_sentence";
import { useNow } from "./use_now";
import type { useReorder } from "./use_reorder";

/** What this user can do with the jobs of the queue. */
export interface JobActions {
  isOurs: (user: string) => boolean;
  manage: (id: string) => void;
  /** Undefined for a job that cannot be moved. */
  handle?: ReturnType<typeof useReorder>["handle"];
  /** Move a job to the first place, if that is possible. */
  moveToTop: (job: Job) => (() => Promise<void>) | undefined;
}

export function JobLink({ job: { kind, experiment_id: id, name } }: { job: Job }) {
  const link = href(kind === "experiment" ? "experiments" : "commands", id);
  return <a href={link} title={name.slice(0, 1000)}>{id}: {name}</a>;
}

/** The kind of the job if it is no experiment, the user, and the time of the submission. */
export function JobOrigin({ job: { kind, user, submitted_ms: submitted } }: { job: Job }) {
  return <span class="quiet">{kind !== "experiment" && `${kind}, `}{user}, <Moment ms={submitted} isBrief /></span>;
}

/** Why and for how long the job waits; the moments themselves when pointed at. */
export function JobSentence({ job }: { job: Job }) {
  const period = sentencePeriodMs(job, Date.now());
  const now = useNow(period);
  const times = [["waits since", job.waits_since_ms], ["start expected", job.expected_start_ms]] as const;
  const title = times.filter(([, ms]) => ms !== null).map(([text, ms]) => `${text} ${new Date(ms!).toISOString()} (UTC)`).join(", ");
  return <span {...(title && { title })}>{jobSentence(job, now) || "–"}</span>;
}

export function progressText({ progress }: Job): string {
  return progress === null ? "–" : `${Math.round(progress * 100)} %`;
}

export function MoveHandle({ job, actions: { isOurs, handle } }: { job: Job; actions: JobActions }) {
  if (!handle || !isOurs(job.user)) return null;
  return (
    <button class="handle" aria-label={`Move job ${job.experiment_id}`} aria-describedby="how-to-move" title="drag to move, or Space and arrow keys" {...handle(job.job_id)}>
      <span aria-hidden="true">⠿</span>
    </button>
  );
}

export function JobButtons({ job, actions: { isOurs, manage, moveToTop } }: { job: Job; actions: JobActions }) {
  if (!isOurs(job.user)) return null;
  const toTop = moveToTop(job);
  return (
    <>
      <button onClick={() => manage(job.job_id)} aria-label={`Manage Job ${job.experiment_id}`}>Manage Job</button>{" "}
      {toTop && <Action label="Move to Top" run={toTop} />}
    </>
  );
}
