/** What can be done with an experiment in its present state. */

import { useState } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { send } from "../../api/client";
import { Action, FormDialog } from "../../parts/dialog";
import { useKeptDraft } from "../../parts/kept_draft";
import { useChecked } from "../../parts/use_checked";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";

interface Props {
  experiment: ExperimentWhole;
  onDone: () => Promise<void>;
}

type Verb = "pause" | "activate" | "cancel" | "kill" | "archive" | "unarchive";

export function Steering({ experiment, onDone }: Props) {
  const [continues, setContinues] = useState(false);
  const { state, archived } = experiment;
  const isContinuable = experiment.continuable !== false;
  const isLost = isContinuable ? "" : " The search cannot be continued later. To stop for a while, use Pause.";
  const isOurs = mayChange(useWho(), experiment.user);
  const path = { experiment_id: experiment.id! };
  const hasEnded = ["COMPLETED", "CANCELED", "ERROR", "DELETE_FAILED"].includes(state);
  const run = (verb: Verb) => async () => {
    await send("post", `/api/v1/experiments/{experiment_id}/${verb}`, { path });
    await onDone();
  };
  const remove = async () => {
    await send("delete", "/api/v1/experiments/{experiment_id}", { path });
    location.hash = href("experiments");
  };
  return (
    <div class="tools" role="group" aria-label="steer the experiment">
      {!isOurs && <span class="quiet">Only {experiment.user} and admins can change it.</span>}
      {isOurs && state === "ACTIVE" && <Action label="Pause" run={run("pause")} />}
      {isOurs && state === "PAUSED" && <Action label="Activate" run={run("activate")} />}
      {isOurs && !hasEnded && state !== "DELETING" && (
        <>
          <Action label="Cancel" confirm="Cancel experiment" run={run("cancel")} question={`Cancel the experiment? Its trials save checkpoints first.${isLost}`} />
          <Action label="Kill" run={run("kill")} question={`Kill the experiment without checkpoints? Work since the last checkpoint is lost.${isLost}`} />
        </>
      )}
      {isOurs && hasEnded && (
        <>
          {!archived && isContinuable && state !== "DELETE_FAILED" && <button onClick={() => setContinues(true)}>Continue</button>}
          <Action label={archived ? "Unarchive" : "Archive"} run={run(archived ? "unarchive" : "archive")} />
          <Action label="Delete" run={remove} question="Delete the experiment with its checkpoints, metrics and logs? This cannot be undone." />
        </>
      )}
      <a class="button" href={`${href("create")}?experiment=${experiment.id}`}>Fork</a>
      <a class="button" href={`${href("compare")}?experiments=${experiment.id}`}>Compare</a>
      {continues && <ContinueDialog experiment={experiment} onDone={onDone} onClose={() => setContinues(false)} />}
    </div>
  );
}

interface ContinueProps {
  experiment: ExperimentWhole;
  onDone: () => Promise<void>;
  onClose: () => void;
}

function ContinueDialog({ experiment, onDone, onClose }: ContinueProps) {
  const { text, wasKept, keep, drop } = useKeptDraft(`continuation of ${experiment.id}`, "");
  const path = { experiment_id: experiment.id! };
  const overrides = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const check = useChecked(JSON.stringify(overrides), (signal) =>
    send("post", "/api/v1/experiments/{experiment_id}/continue", { path, body: { overrides, validate_only: true }, signal }));
  const submit = async () => {
    await send("post", "/api/v1/experiments/{experiment_id}/continue", { path, body: { overrides } });
    drop();
    await onDone();
  };
  return (
    <FormDialog title="Continue the experiment" action="Continue" submit={submit} onClose={onClose} isChanged={text !== ""}>
      <p>Trials that did not complete resume from their latest checkpoints.</p>
      <label>Changed settings, one per line, for example <code>max_restarts=5</code> or <code>searcher.max_length.batches=2000</code>
        <textarea class="wide" rows={4} value={text} onInput={(event) => keep(event.currentTarget.value)} />
      </label>
      {wasKept && <p class="quiet">Your unsaved draft was restored. <button type="button" onClick={() => keep("")}>Discard draft</button></p>}
      <div aria-live="polite">
        {check.state === "checking" && <p class="quiet">Checking …</p>}
        {check.state === "valid" && <p class="quiet">{overrides.length ? "These changes are valid." : "Nothing changes."}</p>}
        {check.state === "invalid" && (
          <ul>
            {check.details.length === 0 && <li>{check.error.message}</li>}
            {check.details.map(({ path: field, message, hint }) => (
              <li key={`${field} ${message}`}><code>{field}</code> {message}{hint && <span class="quiet"> – {hint}</span>}</li>
            ))}
          </ul>
        )}
      </div>
    </FormDialog>
  );
}
