/** Pools with their load, and one of them whole: its agents, instances and bills. */

import { collect, get, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Heading } from "../../parts/heading";
import { Badge, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import { useWho } from "../../shell/who";
import { AgentList } from "./agent_list";
import { Bills } from "./bills";
import { PoolPart } from "./pool_part";

type Pool = Schemas["ResourcePoolView"];

const COLUMNS: Column<Pool>[] = [
  { key: "name", title: "Pool", show: ({ name }) => <a href={href("pools", name)}>{name}</a>, value: ({ name }) => name },
  { key: "state", title: "State", show: ({ state }) => <Badge state={state} /> },
  { key: "scheduler", title: "Scheduler", show: ({ scheduler }) => `${scheduler.type}${scheduler.preemption ? ", preempts" : ""}` },
  { key: "slots", title: "Slots (used/all)", isNumber: true, show: (pool) => `${pool.slots - pool.free_slots}/${pool.slots}` },
  { key: "running", title: "Running", isNumber: true, show: ({ running }) => running },
  { key: "queued", title: "Waiting", isNumber: true, show: ({ queued, name }) => <a href={`${href("jobs")}?pool=${encodeURIComponent(name)}`}>{queued}</a> },
  { key: "agents", title: "Agents", isNumber: true, show: ({ agents }) => agents },
  { key: "instances", title: "Instances", isNumber: true, show: ({ instances }) => instances },
  { key: "default", title: "Default for", show: (pool) => pool.default_for.join(", ") || "–" },
  { key: "waits", title: "Why work waits", show: ({ waits }) => waits || "–" },
];

export function PoolsView({ chosen }: { chosen: string }) {
  const live = useLive("all pools", (signal) =>
    collect((cursor) => get("/api/v1/resource-pools", { query: { limit: 500, cursor }, signal })));
  // Whatever happens to a pool's agents and instances shows in its numbers.
  const mark = JSON.stringify(live.value);
  const who = useWho();
  return (
    <>
      <Heading title="Pools and agents" />
      <Shown live={live}>
        {({ items }) => <Table label="pools" rows={items} rowKey={({ name }) => name} columns={COLUMNS} />}
      </Shown>
      {who && who.role !== "admin" && <p class="quiet">Only admins can drain pools, change budgets, and disable agents.</p>}
      {chosen && <PoolPart name={chosen} mark={mark} />}
      <h2>{chosen ? `Agents of ${chosen}` : "Agents"}</h2>
      <AgentList pool={chosen} mark={mark} />
      <Bills mark={mark} />
    </>
  );
}
