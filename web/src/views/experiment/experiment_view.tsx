/** An experiment: its state, what can be done with it, and its parts. */

import { useEffect } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { get } from "../../api/client";
import { motionOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { Moment, Period, Progress, Shown } from "../../parts/status";
import { countText, dollarsText, numberText } from "../../parts/format";
import { Tabs, useTab } from "../../parts/tabs";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { CheckpointTable } from "../checkpoints/checkpoint_table";
import { CodePart } from "../code/code_part";
import { experimentsLink } from "../projects/projects_view";
import { ConfigPart } from "./config_part";
import { CurvesPart } from "./curves_part";
import { Steering } from "./steering";
import { HistoryPart } from "./history_part";
import { HyperparametersPart } from "./hyperparameters_part";
import { Name, Notes } from "./notes";
import { RungsPart } from "./rungs_part";
import { TrialsPart } from "./trials_part";

const TABS = [
  ["curves", "Curves"],
  ["trials", "Trials"],
  ["rungs", "Rungs"],
  ["hyperparameters", "Hyperparameters"],
  ["checkpoints", "Checkpoints"],
  ["configuration", "Configuration"],
  ["code", "Code"],
  ["history", "History"],
] as const;

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
          <Tabs base={["experiments", id]} tabs={TABS} />
          <Part experiment={experiment} />
        </>
      )}
    </Shown>
  );
}

function Facts({ experiment }: { experiment: ExperimentWhole }) {
  const { trials, best_trial_id: best } = experiment;
  return (
    <dl class="facts">
      {experiment.message && <><dt>Message</dt><dd class={experiment.state === "ERROR" ? "bad" : ""}>{experiment.message}</dd></>}
      <dt>Progress</dt>
      <dd>
        <Progress value={experiment.progress} />, {trials.completed} of {countText(trials.requested, "trial")} completed,{" "}
        {trials.running} running or waiting, {trials.errored} failed
      </dd>
      <dt>Best {experiment.metric}</dt>
      <dd>
        {numberText(experiment.best_metric)}{" "}
        {best != null && <a href={href("trials", best)}>trial {best}</a>}{" "}
        <span class="quiet">({experiment.smaller_is_better ? "smaller" : "larger"} is better)</span>
      </dd>
      <dt>Search</dt>
      <dd>{experiment.searcher}, seed {experiment.seed}</dd>
      <dt>Where</dt>
      <dd>
        pool <a href={href("pools", experiment.resource_pool)}>{experiment.resource_pool}</a>, project{" "}
        <a href={experimentsLink(experiment.workspace, experiment.project)}>{experiment.workspace} / {experiment.project}</a>, by {experiment.user}
      </dd>
      {experiment.state === "ACTIVE" && <Waiting experiment={experiment} />}
      <dt>When</dt>
      <dd><Period from={experiment.created_ms} until={experiment.ended_ms} /></dd>
      <dt>Cost</dt>
      <dd>{dollarsText(experiment.cost)}{experiment.max_cost !== null && ` of ${dollarsText(experiment.max_cost)} at most`}</dd>
    </dl>
  );
}

/** Why it does not have all the slots that it needs, as the queue of its pool says. */
function Waiting({ experiment }: { experiment: ExperimentWhole }) {
  const { id, resource_pool: pool, trials } = experiment;
  const { value: job } = useLive(
    `job of ${id}`,
    (signal) => get("/api/v1/jobs/{job_id}", { path: { job_id: String(id) }, signal }),
    () => "moving",
    String(trials.running),
  );
  if (!job?.waits) return null;
  return (
    <>
      <dt>Waits</dt>
      <dd>
        {job.waits}{job.waits_since_ms !== null && <>, since <Moment ms={job.waits_since_ms} /></>};{" "}
        <a href={`${href("jobs")}?pool=${encodeURIComponent(pool)}`}>job queue</a>
      </dd>
    </>
  );
}

function Part({ experiment }: { experiment: ExperimentWhole }) {
  const who = useWho();
  const tab = useTab(TABS);
  if (tab === "trials") return <TrialsPart experiment={experiment} />;
  if (tab === "rungs") return <RungsPart experiment={experiment} />;
  if (tab === "hyperparameters") return <HyperparametersPart experiment={experiment} />;
  if (tab === "checkpoints") return <CheckpointTable of="experiments" id={experiment.id!} mayChange={mayChange(who, experiment.user)} owner={experiment} />;
  if (tab === "configuration") return <ConfigPart config={experiment.config} />;
  if (tab === "code") return <CodePart id={experiment.id!} />;
  if (tab === "history") return <HistoryPart experiment={experiment.id!} owner={experiment} />;
  return <CurvesPart experiment={experiment} />;
}
