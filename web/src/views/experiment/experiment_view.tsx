/** An experiment: its state, what can be done with it, and its parts. */

import { useEffect } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { get } from "../../api/client";
import { motionOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { DeletedNote } from "../../parts/deleted_note";
import { FailuresLink, Moment, Period, Progress, Shown } from "../../parts/status";
import { countText, dollarsText, numberText } from "../../parts/format";
import { WaysIn } from "../../parts/ways_in";
import { Tabs, useTab } from "../../parts/tabs";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { CheckpointTable } from "../checkpoints/checkpoint_table";
import { CodePart } from "../code/code_part";
import { ExperimentLogs } from "../logs/experiment_logs";
import { experimentsLink } from "../projects/projects_view";
import { ConfigPart } from "./config_part";
import { FailuresPart } from "./failures_part";
import { FamilyPart } from "./family_part";
import { Steering } from "./steering";
import { ExperimentReplacements } from "./experiment_replacements";
import { HistoryPart } from "./history_part";
import { reasonOf } from "./log_excerpt";
import { HyperparametersPart } from "./hyperparameters_part";
import { Name, Notes } from "./notes";
import { ResultsPart } from "./results_part";
import { RungsPart } from "./rungs_part";
import { TimelinePart } from "./timeline_part";
import { TrialsPart } from "./trials_part";

const TABS = [
  ["curves", "Results"],
  ["trials", "Trials"],
  ["rungs", "Rungs"],
  ["timeline", "Timeline"],
  ["hyperparameters", "Hyperparameters"],
  ["checkpoints", "Checkpoints"],
  ["logs", "Logs"],
  ["configuration", "Configuration"],
  ["code", "Code"],
  ["history", "History"],
] as const;
type TabList = readonly (readonly [name: string, title: string])[];

/** The parts of an experiment. Failed trials have a part, which is the first one of a failed experiment. */
function tabsOf({ condition, trials: { errored: failed } }: ExperimentWhole): TabList {
  if (failed === 0) return TABS;
  const failures = ["failures", `Failures (${failed})`] as const;
  return condition === "failed" ? [failures, ...TABS] : [...TABS, failures];
}

export function ExperimentView({ id }: { id: number }) {
  const live = useLive(
    `experiment ${id}`,
    (signal) => get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: id }, signal }),
    motionOf,
  );
  const isCommand = live.value !== undefined && live.value.kind !== "experiment";
  // They share their numbers.
  useEffect(() => { if (isCommand) location.replace(href("commands", id)); }, [isCommand]);
  return (
    <Shown live={live}>
      {(experiment) => isCommand ? null : (
        <>
          <p class="crumbs"><a href={href("experiments")}>Experiments</a> / experiment {id}</p>
          <Name experiment={experiment} onDone={live.refresh} />
          <Steering experiment={experiment} onDone={live.refresh} />
          <div class="split">
            <Facts experiment={experiment} />
            <Notes experiment={experiment} onDone={live.refresh} />
          </div>
          <FamilyPart experiment={experiment} />
          <ExperimentReplacements experiment={experiment} />
          <DeletedNote of={experiment} />
          <Tabs base={["experiments", id]} tabs={tabsOf(experiment)} />
          <Part experiment={experiment} />
        </>
      )}
    </Shown>
  );
}

function Facts({ experiment }: { experiment: ExperimentWhole }) {
  const { trials, best_trial_id: best } = experiment;
  // The part Failures has the ends of the logs.
  const message = trials.errored > 0 ? reasonOf(experiment.message) : experiment.message;
  return (
    <dl class="facts">
      {message && <><dt>Message</dt><dd class={experiment.state === "ERROR" ? "bad" : ""}>{message}</dd></>}
      <dt>Progress</dt>
      <dd>
        <Progress value={experiment.progress} />, {trials.completed} of {countText(trials.requested, "trial")} completed
        {trials.running > 0 && `, ${trials.running} running or waiting`}
        {trials.errored > 0 && <>, <FailuresLink id={experiment.id!}>{trials.errored} failed</FailuresLink></>}
      </dd>
      <dt>Best {experiment.metric}</dt>
      <dd>
        {numberText(experiment.best_metric)}{" "}
        {best != null && <a href={href("trials", best)}>trial {best}</a>}{" "}
        <span class="quiet">({experiment.smaller_is_better ? "smaller" : "larger"} is better, over all lengths)</span>
      </dd>
      <dt>Search</dt>
      <dd>{experiment.searcher}, seed {experiment.seed}</dd>
      <dt>Where</dt>
      <dd>
        pool <a href={href("pools", experiment.resource_pool)}>{experiment.resource_pool}</a>, project{" "}
        <a href={experimentsLink(experiment.workspace, experiment.project)}>{experiment.workspace} / {experiment.project}</a>, by {experiment.user}
      </dd>
      {experiment.state === "ACTIVE" && <Now experiment={experiment} />}
      {trials.running > 0 && <WaysIn id={experiment.id!} config={experiment.config} />}
      {experiment.schedule_id != null && <><dt>Schedule</dt><dd><a href={href("schedules", experiment.schedule_id)}>schedule {experiment.schedule_id}</a></dd></>}
      <dt>When</dt>
      <dd><Period from={experiment.created_ms} until={experiment.ended_ms} /></dd>
      <dt>Cost</dt>
      <dd>{dollarsText(experiment.cost)}{experiment.max_cost !== null && ` of ${dollarsText(experiment.max_cost)} at most`}</dd>
    </dl>
  );
}

/** What an active experiment is doing, why trials wait, and when it is expected to end. */
function Now({ experiment }: { experiment: ExperimentWhole }) {
  const { id, resource_pool: pool, trials } = experiment;
  const { value: activity } = useLive(
    `activity of ${id}`,
    (signal) => get("/api/v1/experiments/{experiment_id}/activity", { path: { experiment_id: id! }, signal }),
    () => "moving",
    String(trials.running),
  );
  if (!activity) return null;
  const { sentence, reason, waits_since_ms: since, expected_start_ms: start, expected_end_ms: end } = activity;
  return (
    <>
      <dt>Now</dt>
      <dd>
        {sentence}
        {reason && <>: {reason} (<a href={`${href("jobs")}?pool=${encodeURIComponent(pool)}`}>job queue</a>)</>}
        {since !== null && <>, since <Moment ms={since} isBrief /></>}
        {start !== null && <>; the next trial is expected to start <Moment ms={start} isBrief /></>}
        {end !== null && <>; expected to end about <Moment ms={end} isBrief /></>}
      </dd>
    </>
  );
}

function Part({ experiment }: { experiment: ExperimentWhole }) {
  const who = useWho();
  const tab = useTab(tabsOf(experiment));
  if (tab === "failures") return <FailuresPart experiment={experiment} />;
  if (tab === "trials") return <TrialsPart experiment={experiment} />;
  if (tab === "rungs") return <RungsPart experiment={experiment} />;
  if (tab === "timeline") return <TimelinePart experiment={experiment} />;
  if (tab === "hyperparameters") return <HyperparametersPart experiment={experiment} />;
  if (tab === "checkpoints") return <CheckpointTable of="experiments" id={experiment.id!} mayChange={mayChange(who, experiment.user)} owner={experiment} />;
  if (tab === "logs") return <ExperimentLogs experiment={experiment} />;
  if (tab === "configuration") return <ConfigPart config={experiment.config} />;
  if (tab === "code") return <CodePart id={experiment.id!} />;
  if (tab === "history") return <HistoryPart experiment={experiment.id!} owner={experiment} />;
  return <ResultsPart experiment={experiment} />;
}
