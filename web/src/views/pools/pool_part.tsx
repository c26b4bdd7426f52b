/** One pool whole: instances, bills, what keeps it from instances, its configuration. */

import { get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { countText, dollarsText } from "../../parts/format";
import { Badge, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { useIsAdmin } from "../../shell/who";
import { ConfigPart } from "../experiment/config_part";
import { BudgetPart } from "./budget_part";
import { PoolReplacements } from "./pool_replacements";

type Pool = Schemas["ResourcePoolWhole"];

const INSTANCES: Column<Schemas["InstanceView"]>[] = [
  { key: "id", title: "Instance", show: ({ id }) => <code>{id}</code> },
  { key: "type", title: "Type", show: (one) => one.instance_type, value: (one) => one.instance_type },
  { key: "zone", title: "Zone", show: ({ zone }) => zone, value: ({ zone }) => zone },
  { key: "market", title: "Market", show: ({ market }) => market, value: ({ market }) => market },
  { key: "slots", title: "Slots", isNumber: true, show: ({ slots }) => slots },
  { key: "price", title: "Price an hour", isNumber: true, show: (one) => dollarsText(one.price_per_hour), value: (one) => one.price_per_hour },
  { key: "state", title: "State", show: ({ state }) => <Badge state={state} /> },
  { key: "launched", title: "Launched", show: (one) => <Moment ms={one.launched_ms} />, value: (one) => one.launched_ms },
  { key: "notice", title: "Interruption", show: (one) => <Moment ms={one.notice_ms} /> },
  { key: "reason", title: "Why", show: ({ reason }) => reason || "–" },
];

export function PoolPart({ name, mark }: { name: string; mark: string }) {
  const path = { resource_pool: name };
  const isAdmin = useIsAdmin();
  const live = useLive(
    `pool ${name}`,
    (signal) => get("/api/v1/resource-pools/{resource_pool}", { path, signal }),
    () => "still",
    mark,
  );
  const run = (verb: "drain" | "undrain") => async () => {
    await send("post", `/api/v1/resource-pools/{resource_pool}/${verb}`, { path });
    await live.refresh();
  };
  return (
    <Shown live={live}>
      {(pool) => (
        <section aria-label={`pool ${name}`}>
          <h2>Pool {pool.name} <Badge state={pool.state} /></h2>
          {pool.description && <p>{pool.description}</p>}
          {isAdmin && (
            <div class="tools">
              {pool.state === "DRAINING"
                ? <Action label="Undrain" run={run("undrain")} />
                : <Action label="Drain" question={`Drain ${pool.name}? The pool accepts no new jobs and starts no more work until you undrain it.`} run={run("drain")} />}
            </div>
          )}
          <Facts pool={pool} onDone={live.refresh} />
          {pool.instance_list.length > 0 && (
            <Table label="instances" rows={pool.instance_list} rowKey={({ id }) => id} columns={INSTANCES} />
          )}
          <Trouble fleet={pool.fleet} />
          <PoolReplacements name={name} mark={mark} />
          <details><summary>Configuration</summary><ConfigPart config={pool.config} /></details>
        </section>
      )}
    </Shown>
  );
}

function Facts({ pool, onDone }: { pool: Pool; onDone: () => Promise<void> }) {
  return (
    <dl class="facts">
      <dt>Jobs</dt><dd>{countText(pool.jobs, "job")}; of their trials {pool.running} run, {pool.queued} wait</dd>
      <BudgetPart pool={pool} onDone={onDone} />
      {pool.quiet_until_ms != null && <><dt>Quiet hours</dt><dd>until <Moment ms={pool.quiet_until_ms} />; no work starts before, except urgent jobs</dd></>}
      {pool.quiet_until_ms == null && pool.next_quiet_ms != null && <><dt>Next quiet hours</dt><dd><Moment ms={pool.next_quiet_ms} /></dd></>}
      {pool.waits && <><dt>Waits</dt><dd>{pool.waits}</dd></>}
    </dl>
  );
}

function Trouble({ fleet }: { fleet: Pool["fleet"] }) {
  const { offerings, failed_boots: boots } = fleet;
  const isShort = fleet.waits || fleet.trouble || offerings.length > 0 || boots.length > 0;
  const warning = fleet.warning && <><h2>Warning</h2><p>{fleet.warning}</p></>;
  if (!isShort) return <>{warning}</>;
  return (
    <>
      {warning}
      <h2>Why there are no more instances</h2>
      {fleet.waits && <p>{fleet.waits}</p>}
      {fleet.trouble && <p class="failure">{fleet.trouble}</p>}
      <ul>
        {offerings.map((one) => (
          <li key={one.offering}>{one.offering}: {countText(one.errors, "error")}{one.given_up ? ", given up" : ""}. {one.message} Next try <Moment ms={one.retry_ms} /></li>
        ))}
        {boots.map((boot) => (
          <li key={boot.id}>
            {boot.instance_type} {boot.id} did not boot (<Moment ms={boot.ended_ms} />): {boot.reason}
            {boot.boot_log && <details><summary>Log</summary><pre tabIndex={0}>{boot.boot_log}</pre></details>}
          </li>
        ))}
      </ul>
    </>
  );
}
