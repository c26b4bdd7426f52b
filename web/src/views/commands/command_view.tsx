/** A command, notebook or shell: how it goes, its log, and how it is ended. */

import { useEffect } from "preact/hooks";
import { get, send, type Schemas } from "../../api/client";
import { motionOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { CopyButton } from "../../parts/copy_button";
import { Action } from "../../parts/dialog";
import { bytesText, countText, dollarsText } from "../../parts/format";
import { Labels } from "../../parts/labels";
import { Empty, Moment, Period, Shown } from "../../parts/status";
import { Tabs, useTab } from "../../parts/tabs";
import { WaysIn } from "../../parts/ways_in";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { ConfigPart } from "../experiment/config_part";
import { HistoryPart } from "../experiment/history_part";
import { Name } from "../experiment/notes";
import { ManageJobButton } from "../jobs/manage_job_button";
import { experimentsLink } from "../projects/projects_view";
import { LogsPart } from "../logs/logs_part";
import { exitCodeText } from "./exit_code";

type CommandWhole = Schemas["ExperimentWithConfig"];

const TABS = [
  ["logs", "Logs"],
  ["configuration", "Configuration"],
  ["history", "History"],
] as const;

interface Props {
  command: CommandWhole;
  onDone: () => Promise<void>;
}

export function CommandView({ id }: { id: number }) {
  const live = useLive(
    `command ${id}`,
    (signal) => get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: id }, signal }),
    motionOf,
  );
  const isExperiment = live.value?.kind === "experiment";
  // They share their numbers.
  useEffect(() => { if (isExperiment) location.replace(href("experiments", id)); }, [isExperiment]);
  return (
    <Shown live={live}>
      {(command) => isExperiment ? null : (
        <>
          <p class="crumbs"><a href={href("commands")}>Commands and notebooks</a> / {command.kind} {id}</p>
          <Name experiment={command} onDone={live.refresh} />
          <CommandSteering command={command} onDone={live.refresh} />
          <Facts command={command} />
          <Tabs base={["commands", id]} tabs={TABS} />
          <Part command={command} />
        </>
      )}
    </Shown>
  );
}

function CommandSteering({ command, onDone }: Props) {
  const isOurs = mayChange(useWho(), command.user);
  const { kind, state, archived } = command;
  const path = { experiment_id: command.id! };
  const hasEnded = command.ended_ms != null;
  const run = (verb: "kill" | "archive" | "unarchive") => async () => {
    await send("post", `/api/v1/experiments/{experiment_id}/${verb}`, { path });
    await onDone();
  };
  const remove = async () => {
    await send("delete", "/api/v1/experiments/{experiment_id}", { path });
    location.hash = href("commands");
  };
  return (
    <div class="tools" role="group" aria-label={`steer the ${kind}`}>
      {!isOurs && <span class="quiet">Only {command.user} and admins can change it.</span>}
      {isOurs && !hasEnded && state !== "DELETING" && (
        <>
          <Action label="Kill" run={run("kill")} question={`Kill the ${kind}? It is not restarted. Files that it did not store elsewhere are lost.`} />
          <ManageJobButton experiment={command.id!} onDone={onDone} />
        </>
      )}
      {isOurs && hasEnded && (
        <>
          <Action label={archived ? "Unarchive" : "Archive"} run={run(archived ? "unarchive" : "archive")} />
          <Action label="Delete" run={remove} question={`Delete the ${kind} with its log? This cannot be undone.`} />
        </>
      )}
    </div>
  );
}

function Facts({ command }: { command: CommandWhole }) {
  const { id, kind, config, run, cost, max_cost: most } = command;
  const resources = config["resources"] as { slots?: number } | undefined;
  return (
    <dl class="facts">
      {run?.program && <><dt>Program</dt><dd><code>{run.program}</code> <CopyButton text={run.program} /></dd></>}
      {command.ended_ms == null && <WaysIn id={id!} kind={kind} config={config} />}
      <dt>Exit code</dt>
      <dd>{exitCodeText(run)}</dd>
      {command.message && <><dt>Message</dt><dd class={command.state === "ERROR" ? "bad" : ""}>{command.message}</dd></>}
      <dt>Machine</dt>
      <dd>{run?.agent_id ?? (command.ended_ms == null ? "none yet" : "none")}, pool <a href={href("pools", command.resource_pool)}>{command.resource_pool}</a>, {countText(resources?.slots ?? 0, "slot")}</dd>
      {command.ended_ms == null && <Queued id={id!} mark={`${command.state} ${run?.agent_id}`} />}
      <dt>Who</dt>
      <dd>{command.user}, project <a href={experimentsLink(command.workspace, command.project)}>{command.workspace} / {command.project}</a></dd>
      <dt>When</dt>
      <dd><Period from={command.created_ms} until={command.ended_ms} /></dd>
      {command.ended_ms == null && run?.ends_ms != null && <><dt>Ends</dt><dd><Moment ms={run.ends_ms} />, at its max_duration</dd></>}
      {run?.snapshot && <><dt>Files saved</dt><dd><Moment ms={run.snapshot.saved_ms} />, {bytesText(run.snapshot.size_bytes)}</dd></>}
      <dt>Cost</dt>
      <dd>{dollarsText(cost)}{most !== null && ` of ${dollarsText(most)} at most`}</dd>
      {command.labels.length > 0 && <><dt>Labels</dt><dd><Labels labels={command.labels} of="commands" /></dd></>}
    </dl>
  );
}

/** Its place in the queue of its pool, and why it waits there. */
function Queued({ id, mark }: { id: number; mark: string }) {
  const { value: job } = useLive(`job of ${id}`, (signal) => get("/api/v1/jobs/{job_id}", { path: { job_id: String(id) }, signal }), () => "moving", mark);
  if (!job) return null;
  const { scheduler, priority, weight, jobs_ahead: ahead } = job;
  return (
    <>
      <dt>Queue</dt>
      <dd>
        {scheduler === "priority" ? `priority ${priority}, ` : scheduler === "fair_share" ? `weight ${weight}, ` : ""}
        {ahead != null && `${countText(ahead, "job")} ahead, `}
        <a href={`${href("jobs")}?pool=${encodeURIComponent(job.resource_pool)}`}>job queue</a>
      </dd>
      {job.waits && <><dt>Waits</dt><dd>{job.waits}{job.waits_since_ms !== null && <>, since <Moment ms={job.waits_since_ms} /></>}</dd></>}
    </>
  );
}

function Part({ command }: { command: CommandWhole }) {
  const tab = useTab(TABS);
  const id = command.id!;
  if (tab === "configuration") return <ConfigPart config={command.config} />;
  if (tab === "history") return <HistoryPart experiment={id} owner={command} />;
  if (!command.run) return <Empty>No lines yet.</Empty>;
  return <LogsPart id={command.run.trial_id} base={["commands", id, "logs"]} hasRanks={false} />;
}
