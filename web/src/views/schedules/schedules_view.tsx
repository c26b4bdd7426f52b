/** The schedules of the cluster; one schedule with its last runs. */

import { collect, get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { Heading } from "../../parts/heading";
import { Badge, Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";

type Schedule = Schemas["Schedule"];
type Run = Schedule["runs"][number];

const CLASSES: Record<string, string> = { submitted: "good", skipped: "wait", missed: "bad", refused: "bad" };

export function SchedulesView({ chosen }: { chosen: string }) {
  return chosen ? <SchedulePage id={Number(chosen)} /> : <ScheduleList />;
}

function ScheduleList() {
  const live = useLive("schedules", (signal) =>
    collect((cursor) => get("/api/v1/schedules", { query: { limit: 50, cursor }, signal }), 500), () => "resting");
  return (
    <>
      <Heading title="Schedules" />
      <p class="quiet">
        A schedule submits experiments at fixed times. <code>detcloud create</code> stores a configuration with a section <code>schedule</code>.
      </p>
      <Shown live={live}>
        {({ items }) => items.length === 0
          ? <Empty>No schedules yet.</Empty>
          : <Table label="schedules" rows={items} rowKey={({ id }) => id} columns={scheduleColumns(live.refresh)} />}
      </Shown>
    </>
  );
}

function scheduleColumns(onDone: () => Promise<void>): Column<Schedule>[] {
  return [
    { key: "name", title: "Name", show: ({ id, name }) => <a href={href("schedules", String(id))}>{name || `schedule ${id}`}</a>, value: ({ name }) => name },
    { key: "user", title: "Owner", show: ({ user }) => user, value: ({ user }) => user },
    { key: "times", title: "Times", show: ({ cron, time_zone: zone }) => <><code>{cron}</code> <span class="quiet">{zone}</span></> },
    { key: "next", title: "Next", show: (schedule) => <Next schedule={schedule} />, value: ({ next_ms: ms }) => ms },
    { key: "last", title: "Last run", show: ({ runs: [run] }) => run ? <><Outcome run={run} /> <RunLink run={run} /></> : "–" },
    { key: "actions", title: "Actions", show: (schedule) => <Changes schedule={schedule} onDone={onDone} /> },
  ];
}

function SchedulePage({ id }: { id: number }) {
  const live = useLive(`schedule ${id}`, (signal) => get("/api/v1/schedules/{schedule_id}", { path: { schedule_id: id }, signal }), () => "resting");
  return (
    <>
      <p class="crumbs"><a href={href("schedules")}>Schedules</a> / {id}</p>
      <Shown live={live}>
        {(schedule) => (
          <>
            <Heading title={`Schedule ${schedule.name}`} />
            <Changes schedule={schedule} onDone={live.refresh} />
            <dl class="facts">
              <dt>Times</dt><dd><code>{schedule.cron}</code> in {schedule.time_zone}</dd>
              <dt>Next</dt><dd><Next schedule={schedule} /></dd>
              <dt>Rules</dt>
              <dd>
                {schedule.overlap === "allow" ? "experiments may overlap" : "a time is skipped while the last experiment runs"};{" "}
                {schedule.catch_up ? "one experiment is submitted after missed times" : "missed times are left out"}
              </dd>
              <dt>Owner</dt><dd>{schedule.user}, since <Moment ms={schedule.created_ms} /></dd>
            </dl>
            <h2>Last runs</h2>
            {schedule.runs.length === 0
              ? <Empty>No runs yet.</Empty>
              : <Table label="runs" rows={schedule.runs} rowKey={({ time_ms: ms, experiment_id: experiment }) => `${ms} ${experiment}`} columns={RUN_COLUMNS} />}
          </>
        )}
      </Shown>
    </>
  );
}

const RUN_COLUMNS: Column<Run>[] = [
  { key: "time", title: "Time", show: ({ time_ms: ms }) => <Moment ms={ms} />, value: ({ time_ms: ms }) => ms },
  { key: "outcome", title: "Outcome", show: (run) => <Outcome run={run} />, value: ({ outcome }) => outcome },
  { key: "experiment", title: "Experiment", show: (run) => <RunLink run={run} />, value: ({ experiment_id: id }) => id },
  { key: "reason", title: "Reason", show: ({ text }) => text || "–" },
];

function Next({ schedule: { paused, next_ms: ms } }: { schedule: Schedule }) {
  return paused ? <Badge state="paused" /> : <Moment ms={ms} />;
}

function Outcome({ run: { outcome, text } }: { run: Run }) {
  return <span class={`badge ${CLASSES[outcome] ?? ""}`} title={text}>{outcome}</span>;
}

function RunLink({ run: { experiment_id: id } }: { run: Run }) {
  return id === null ? <>–</> : <a href={href("experiments", id)}>experiment {id}</a>;
}

/** The buttons of the schedule's owner and of admins. */
function Changes({ schedule: { id, name, user, paused }, onDone }: { schedule: Schedule; onDone: () => Promise<void> }) {
  const who = useWho();
  const path = { path: { schedule_id: id } };
  if (!mayChange(who, user)) return <span class="quiet">Only {user} and admins can change it.</span>;
  const act = (change: () => Promise<unknown>) => async () => {
    await change();
    await onDone();
  };
  const remove = async () => {
    await send("delete", "/api/v1/schedules/{schedule_id}", path);
    if (location.hash.startsWith(`${href("schedules")}/`)) location.hash = href("schedules");
    else await onDone();
  };
  return (
    <div class="tools" role="group" aria-label={`change schedule ${name}`}>
      {paused
        ? <Action label="Activate" run={act(() => send("post", "/api/v1/schedules/{schedule_id}/activate", path))} />
        : <Action label="Pause" run={act(() => send("post", "/api/v1/schedules/{schedule_id}/pause", path))} />}
      <Action label="Run now" question={`Submit an experiment of schedule ${name} now?`} run={act(() => send("post", "/api/v1/schedules/{schedule_id}/run", path))} />
      <Action label="Delete" question={`Delete schedule ${name}? Its experiments are kept.`} run={remove} />
    </div>
  );
}
