/** The alarms of the cluster with their states; one alarm with its page of the runbook. */

import { get, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Heading } from "../../parts/heading";
import { Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import "./alarms.css";
import { RunbookText } from "./runbook_text";

type Alarm = Schemas["AlarmView"];

const CLASSES: Record<string, string> = { raised: "bad", pending: "wait", clear: "good" };
const ORDER = ["raised", "pending", "clear", "off"];

const STATES: Column<Alarm>[] = [
  { key: "state", title: "State", show: ({ state }) => <span class={`badge ${CLASSES[state] ?? ""}`}>{state}</span>, value: ({ state }) => ORDER.indexOf(state) },
  { key: "pool", title: "Pool", show: ({ pool }) => pool ? <a href={href("pools", pool)}>{pool}</a> : "–", value: ({ pool }) => pool },
  { key: "since", title: "Since", show: ({ since_ms: ms }) => <Moment ms={ms} />, value: ({ since_ms: ms }) => ms },
  { key: "value", title: "Value", show: ({ value }) => value || "–" },
  { key: "threshold", title: "Threshold", show: ({ threshold }) => threshold || "–" },
  { key: "found", title: "Found", show: ({ text }) => text || "–" },
];
const COLUMNS: Column<Alarm>[] = [
  { key: "alarm", title: "Alarm", show: ({ alarm, meaning }) => <a href={href("alarms", alarm)} title={meaning}>{alarm}</a>, value: ({ alarm }) => alarm },
  ...STATES,
];

export function AlarmsView({ chosen }: { chosen: string }) {
  return chosen ? <AlarmPage name={chosen} /> : <AlarmList />;
}

function AlarmList() {
  const live = useLive("all alarms", (signal) => get("/api/v1/alarms", { query: { state: "all" }, signal }), () => "resting");
  return (
    <>
      <Heading title="Alarms" />
      <Shown live={live}>
        {({ items, cloud_alarms: others }) => (
          <>
            <p class="quiet">The cluster checks its alarms every five minutes. Each alarm links to its page of the runbook.</p>
            <div class="alarms">
              <Table label="alarms" columns={COLUMNS} rows={inOrder(items)} rowKey={({ alarm, pool }) => `${alarm} ${pool}`} />
            </div>
            <h2>Alarms of the cloud</h2>
            <p>
              A cluster on AWS or Google Cloud has further alarms, which the cloud evaluates. Their states are in the
              console of the cloud:{" "}
              {others.map((name, place) => <span key={name}>{place > 0 && ", "}<a href={href("alarms", name)}>{name}</a></span>)}.
            </p>
          </>
        )}
      </Shown>
    </>
  );
}

/** Raised alarms first; alarms of a state stay in the order of the cluster. */
function inOrder(items: Alarm[]): Alarm[] {
  return [...items].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
}

function AlarmPage({ name }: { name: string }) {
  const live = useLive(
    `alarm ${name}`,
    (signal) => get("/api/v1/alarms/{alarm}", { path: { alarm: name }, signal }),
    () => "resting",
  );
  return (
    <>
      <p class="crumbs"><a href={href("alarms")}>Alarms</a> / {name}</p>
      <Heading title={`Alarm ${name}`} />
      <Shown live={live}>
        {({ items, runbook }) => (
          <>
            {items.length > 0
              ? <div class="alarms"><Table label="states" columns={STATES} rows={items} rowKey={({ pool }) => pool} /></div>
              : <p class="quiet">The cloud evaluates this alarm. The console of the cloud shows its state.</p>}
            <RunbookText text={runbook} />
          </>
        )}
      </Shown>
    </>
  );
}
