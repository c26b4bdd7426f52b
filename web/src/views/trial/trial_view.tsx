/** A trial: its state, its metrics, its checkpoints, its logs. */

import type { TrialWhole } from "../../api/answers";
import { get, send } from "../../api/client";
import { motionOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { DeletedNote } from "../../parts/deleted_note";
import { Action } from "../../parts/dialog";
import { countText, dollarsText, durationText, numberText, stepsText, valueText } from "../../parts/format";
import { Heading } from "../../parts/heading";
import { MetadataInPlace } from "../../parts/remarks";
import { ReplacementBars } from "../../parts/replacements";
import { Badge, Empty, Moment, Period, Shown } from "../../parts/status";
import { Tabs, useTab } from "../../parts/tabs";
import { WaysIn } from "../../parts/ways_in";
import { href } from "../../shell/router";
import { useExperimentRight, type Right } from "../../shell/who";
import { CheckpointTable } from "../checkpoints/checkpoint_table";
import { flatten } from "../experiment/all_trials";
import { HistoryPart } from "../experiment/history_part";
import { reasonOf } from "../experiment/log_excerpt";
import { LogsPart } from "../logs/logs_part";
import { MediaPart } from "./media_part";
import { MetricsPart } from "./metrics_part";
import { ProfilerPart } from "./profiler_part";

const TABS = [
  ["metrics", "Metrics"],
  ["media", "Media"],
  ["profiler", "Profiler"],
  ["logs", "Logs"],
  ["checkpoints", "Checkpoints"],
  ["history", "History"],
  ["environment", "Environment"],
] as const;

export function TrialView({ id }: { id: number }) {
  const live = useLive(
    `trial ${id}`,
    (signal) => get("/api/v1/trials/{trial_id}", { path: { trial_id: id }, signal }),
    motionOf,
  );
  return (
    <Shown live={live}>
      {(trial) => <LoadedTrial trial={trial} onDone={live.refresh} />}
    </Shown>
  );
}

interface LoadedProps {
  trial: TrialWhole;
  onDone: () => Promise<void>;
}

function LoadedTrial({ trial, onDone }: LoadedProps) {
  const { id } = trial;
  const right = useExperimentRight(trial.experiment_id);
  return (
    <>
      <p class="crumbs">
        <a href={href("experiments")}>Experiments</a> / <a href={href("experiments", trial.experiment_id)}>experiment {trial.experiment_id}</a> / trial {id}
      </p>
      <Heading title={`Trial ${id}`}><Badge state={trial.condition} /></Heading>
      <Tools trial={trial} right={right} onDone={onDone} />
      <div class="split">
        <Facts trial={trial} />
        <Hyperparameters hparams={trial.hparams} />
      </div>
      <Replacements trial={trial} />
      <TrialMetadata trial={trial} right={right} onDone={onDone} />
      <DeletedNote of={trial} />
      <Tabs base={["trials", id]} tabs={TABS} />
      <Part trial={trial} mayChange={right.mayChange} />
    </>
  );
}

interface ChangeProps extends LoadedProps {
  right: Right;
}

function Tools({ trial: { id, ended_ms: ended }, right: { mayChange, owner }, onDone }: ChangeProps) {
  const kill = async () => {
    await send("post", "/api/v1/trials/{trial_id}/kill", { path: { trial_id: id } });
    await onDone();
  };
  return (
    <div class="tools" role="group" aria-label="steer the trial">
      {!mayChange && owner && <span class="quiet">Only {owner} and admins can change it.</span>}
      {mayChange && ended === null && (
        <Action label="Kill" question="Kill the trial without a checkpoint? The search continues without the trial." run={kill} />
      )}
      <a href={`${href("create")}?trial=${id}`}>Fork with these hyperparameters</a>
      <a href={`${href("compare")}?trials=${id}`}>Compare</a>
    </div>
  );
}

function TrialMetadata({ trial, right: { mayChange }, onDone }: ChangeProps) {
  const { id, metadata, metadata_revision: revision } = trial;
  const save = async (changed: Record<string, unknown>) => {
    await send("patch", "/api/v1/trials/{trial_id}", { path: { trial_id: id }, body: { metadata: changed, revision } });
    await onDone();
  };
  return <MetadataInPlace of={`trial ${id}`} metadata={metadata} mayEdit={mayChange} save={save} reload={onDone} />;
}

function Part({ trial, mayChange }: { trial: TrialWhole; mayChange: boolean }) {
  const tab = useTab(TABS);
  if (tab === "media") return <MediaPart trial={trial} />;
  if (tab === "profiler") return <ProfilerPart trial={trial} />;
  if (tab === "logs") return <LogsPart id={trial.id} base={["trials", trial.id, "logs"]} />;
  if (tab === "checkpoints") return <CheckpointTable of="trials" id={trial.id} mayChange={mayChange} owner={trial} />;
  if (tab === "history") return <HistoryPart experiment={trial.experiment_id} owner={trial} trial={trial.id} />;
  if (tab === "environment") return <Environment trial={trial} />;
  return <MetricsPart trial={trial} />;
}

/** Return the suffix for the failures that count against `max_restarts`. "" without a window. */
function windowText({ restart_window_ms: window, counted_restarts: counted }: TrialWhole): string {
  return window ? `, ${counted} within the restart window of ${durationText(window)}` : "";
}

function Facts({ trial }: { trial: TrialWhole }) {
  const places = trial.allocation?.places.map(({ agent_id, slots }) => `${agent_id} (slots ${slots.join(", ") || "none"})`);
  return (
    <dl class="facts">
      {trial.message && <><dt>Message</dt><dd class={trial.state === "ERROR" ? "bad" : ""}><Message text={trial.message} /></dd></>}
      <dt>Steps</dt>
      <dd>{stepsText(trial)}</dd>
      <dt>Metric</dt>
      <dd>latest {numberText(trial.metric)}, best {numberText(trial.best_metric)}</dd>
      {trial.allocation && <><dt>Runs on</dt><dd>{places?.join(", ") || "no agent yet"}</dd><WaysIn id={trial.id!} isTrial /></>}
      {trial.allocation?.hang && <><dt>Hangs</dt><dd class="bad">since <Moment ms={trial.allocation.hang.since_ms} />: {trial.allocation.hang.text}</dd></>}
      {trial.ends_ms != null && <><dt>Ends</dt><dd><Moment ms={trial.ends_ms} />, at its max_trial_duration</dd></>}
      <dt>Failures</dt>
      <dd>{trial.restarts}{windowText(trial)}{trial.losses > 0 && `, and ${countText(trial.losses, "machine")} lost`}</dd>
      {trial.recent_losses.map((loss) => (
        <div class="pair" key={loss.time_ms}><dt>Lost</dt><dd><Moment ms={loss.time_ms} /> {loss.agent_id}: {loss.cause}</dd></div>
      ))}
      {trial.recent_damages.map((damage) => (
        <div class="pair" key={damage.uuid}>
          <dt>Damaged</dt>
          <dd>
            <Moment ms={damage.time_ms} /> checkpoint <code title={damage.uuid}>{damage.uuid.slice(0, 8)}</code> at step {damage.steps_completed}: {damage.cause};{" "}
            {damage.instead ? <>resumed from <code title={damage.instead}>{damage.instead.slice(0, 8)}</code> at step {damage.instead_steps}</> : "this trial had no other checkpoint"}
          </dd>
        </div>
      ))}
      {trial.log_matches.map((match) => (
        <div class="pair" key={`${match.epoch} ${match.policy} ${match.rank}`}>
          <dt>{match.signal || "Log policy"}</dt>
          <dd><Moment ms={match.time_ms} /> {match.agent_id} {match.line}{match.actions.length > 0 && ` (${match.actions.join(", ")})`}</dd>
        </div>
      ))}
      {trial.excluded_agents.length > 0 && <><dt>Excluded agents</dt><dd>{trial.excluded_agents.join(", ")}</dd></>}
      <dt>When</dt>
      <dd><Period from={trial.created_ms} until={trial.ended_ms} /></dd>
      <dt>Cost</dt>
      <dd>{dollarsText(trial.cost)}</dd>
      <dt>Seed</dt>
      <dd>{trial.seed}</dd>
      {trial.warm_start && <><dt>Started from</dt><dd><code>{trial.warm_start}</code></dd></>}
    </dl>
  );
}

function Replacements({ trial: { replacements } }: { trial: TrialWhole }) {
  if (replacements.length === 0) return null;
  return (
    <details open={replacements[0]!.ended_ms === null}>
      <summary>{countText(replacements.length, "replacement")}: from the loss of the slots to the next step</summary>
      <ReplacementBars
        replacements={replacements}
        title={({ from_epoch: from, epoch }) => (from === epoch ? `Run ${epoch}` : `Run ${from} to ${epoch}`)}
      />
    </details>
  );
}

function Hyperparameters({ hparams }: { hparams: Record<string, unknown> }) {
  return (
    <section aria-label="hyperparameters">
      <dl class="facts">
        {Object.entries(flatten(hparams)).map(([name, value]) => (
          <div class="pair" key={name}><dt>{name}</dt><dd>{valueText(value)}</dd></div>
        ))}
      </dl>
    </section>
  );
}

function Environment({ trial }: { trial: TrialWhole }) {
  return (
    <>
      <h2>Environment of the last run</h2>
      {trial.environment ? <pre tabIndex={0}>{JSON.stringify(trial.environment, null, 2)}</pre> : <Empty>The trial has not reported its environment yet.</Empty>}
    </>
  );
}

/** The reason of a message; the end of the log that the message quotes opens on demand. */
function Message({ text }: { text: string }) {
  const reason = reasonOf(text);
  if (reason.length === text.trimEnd().length) return <>{text}</>;
  return <>{reason} <details><summary>Whole message</summary><pre class="whole-message">{text}</pre></details></>;
}
