/** The failed trials of an experiment, each with the end of its log. */

import type { ExperimentWhole } from "../../api/answers";
import { collect, get, type Schemas } from "../../api/client";
import { motionOfParts } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { countText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { href } from "../../shell/router";
import { logExcerpt, reasonOf } from "./log_excerpt";

// Each failed trial costs a request for its log.
const TRIALS_MAX = 5;
const TAIL_BYTES = 8_000;

interface Failure {
  trial: Schemas["Trial"];
  excerpt: string;
}

export function FailuresPart({ experiment }: { experiment: ExperimentWhole }) {
  const { id, trials: { errored: failed } } = experiment;
  const live = useLive(
    `failures ${id}`,
    (signal) => loadFailures(id!, signal),
    () => motionOfParts(experiment),
    String(failed),
  );
  return (
    <Shown live={live}>
      {(failures) => failures.length === 0
        ? <Empty>No trial has failed.</Empty>
        : (
          <>
            {failures.map(({ trial, excerpt }) => <FailedTrial key={trial.id} trial={trial} excerpt={excerpt} />)}
            {failed > failures.length && (
              <p class="quiet">
                The first {failures.length} of {countText(failed, "failed trial")}. <code>detcloud trial list {id} --state failed</code> lists all.
              </p>
            )}
          </>
        )}
    </Shown>
  );
}

function FailedTrial({ trial: { id, message, restarts }, excerpt }: Failure) {
  const reason = reasonOf(message);
  return (
    <section aria-label={`failure of trial ${id}`}>
      <h2><a href={href("trials", id)}>Trial {id}</a>{restarts > 1 && ` failed ${restarts} times`}</h2>
      {reason && <p class="bad">{reason}</p>}
      {excerpt ? <pre tabIndex={0}>{excerpt}</pre> : <Empty>The trial has no log.</Empty>}
      <p><a href={href("trials", id, "logs")}>Whole log of trial {id}</a></p>
    </section>
  );
}

async function loadFailures(id: number, signal: AbortSignal): Promise<Failure[]> {
  const path = { experiment_id: id };
  const { items } = await collect(
    (cursor) => get("/api/v1/experiments/{experiment_id}/trials", { path, query: { state: "failed", limit: TRIALS_MAX, cursor }, signal }),
    TRIALS_MAX,
  );
  return Promise.all(items.slice(0, TRIALS_MAX).map(async (trial) => {
    const { text } = await get("/api/v1/trials/{trial_id}/logs", { path: { trial_id: trial.id }, query: { tail_bytes: TAIL_BYTES }, signal });
    return { trial, excerpt: logExcerpt(text) };
  }));
}
