/** The logs of all trials of an experiment, in the order of time. */

import { useMemo } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { get } from "../../api/client";
import { motionOf as motionOfOwner } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { href, useRoute } from "../../shell/router";
import { LogBox } from "./log_box";
import { LogFrame } from "./log_frame";
import { isNarrowed, wantedOf, type Wanted } from "./log_settings";
import { motionOf, textOf } from "./logs_part";
import { PlainField } from "./plain_field";
import { SliceWindow } from "./slice_window";
import { parseTrials, TRIALS_MAX } from "./trial_list";

// The clocks of machines may be behind the cluster's clock.
const CLOCKS_MS = 60_000;

export function ExperimentLogs({ experiment }: { experiment: ExperimentWhole }) {
  const { query } = useRoute();
  const text = query.get("trials") ?? "";
  const trials = parseTrials(text);
  return (
    <LogFrame
      hasRanks filters={["trials"]}
      fields={(
        <>
          <PlainField name="trials" title="Trials" placeholder="all: 1, 2" isWrong={trials === undefined} />
          {trials === undefined && (
            <span class="bad" role="alert">Trials: {text} is no list of at most {TRIALS_MAX} ids of trials; write for example 1, 2</span>
          )}
        </>
      )}
    >
      <MergedLog experiment={experiment} wanted={wantedOf(query)} trials={trials ?? []} />
    </LogFrame>
  );
}

interface Props {
  experiment: ExperimentWhole;
  wanted: Wanted;
  trials: readonly number[];
}

function MergedLog({ experiment, wanted, trials }: Props) {
  const id = experiment.id!;
  const isMoving = motionOfOwner(experiment) === "moving";
  const name = `${id} ${JSON.stringify(wanted)} ${trials.join()} ${isMoving}`;
  const source = useMemo(() => {
    const { since_ms: since, until_ms: until, ...others } = wanted;
    const begin = Math.max(0, since ?? 0, experiment.created_ms - CLOCKS_MS);
    // An experiment that is paused may have ended runs, but no end.
    const end = until ?? (isMoving ? null : (experiment.ended_ms ?? Date.now()) + CLOCKS_MS);
    return new SliceWindow(
      (period, signal) => get("/api/v1/experiments/{experiment_id}/logs/lines", {
        path: { experiment_id: id },
        query: { ...others, ...period, ...(until !== null && { until_ms: Math.min(until, period.until_ms ?? until) }), trial: trials.map(String) },
        signal,
      }),
      begin,
      end,
    );
  }, [name]);
  const live = useLive(`lines of ${name}`, (signal) => source.read(signal), motionOf, "", textOf);
  return (
    <LogBox label={`logs of experiment ${id}`} source={source} live={live} isNarrowed={isNarrowed(wanted) || trials.length > 0}
      hasRanks columns={[]} marked={null}
      linkOf={({ trial_id: trial, offset }) => `${href("trials", trial!, "logs")}?line=${offset}`} onSee={() => undefined}>
      A link of a line leads to the line in the log of its trial.
    </LogBox>
  );
}
