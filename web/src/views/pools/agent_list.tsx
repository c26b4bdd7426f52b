/** Agents, their slots as a picture, and how they are taken out of use. */

import { collect, get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { bytesText } from "../../parts/format";
import { Badge, Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import { useIsAdmin } from "../../shell/who";

type Agent = Schemas["Agent"];

/** The agents of a pool, of all pools for "". */
export function AgentList({ pool, mark }: { pool: string; mark: string }) {
  const live = useLive("agents", (signal) =>
    collect((cursor) => get("/api/v1/agents", { query: { limit: 500, cursor }, signal }), 2000),
    () => "still", mark);
  const isAdmin = useIsAdmin();
  const disable = async ({ id }: Agent, drain: boolean) => {
    await send("post", "/api/v1/agents/{agent_id}/disable", { path: { agent_id: id }, body: { drain } });
    await live.refresh();
  };
  const enable = async ({ id }: Agent) => {
    await send("post", "/api/v1/agents/{agent_id}/enable", { path: { agent_id: id } });
    await live.refresh();
  };
  return (
    <Shown live={live}>
      {({ items }) => {
        const agents = items.filter(({ resource_pool: own }) => !pool || own === pool);
        return agents.length === 0 ? <Empty>No agent has enrolled.</Empty> : (
          <Table label="agents" rows={agents} rowKey={({ id }) => id} columns={isAdmin ? [...COLUMNS, actionsColumn(enable, disable)] : COLUMNS} />
        );
      }}
    </Shown>
  );
}

const COLUMNS: Column<Agent>[] = [
  { key: "name", title: "Agent", show: ({ name, id }) => <span title={id}>{name}</span>, value: ({ name }) => name },
  { key: "pool", title: "Pool", show: (agent) => <a href={href("pools", agent.resource_pool)}>{agent.resource_pool}</a>, value: (agent) => agent.resource_pool },
  { key: "state", title: "State", show: (agent) => <><Badge state={agent.state} /> {!agent.enabled && (agent.draining ? "draining" : "out of use")}<Faults faults={agent.faults} /><Exclusions exclusions={agent.exclusions} /><Occupied occupancy={agent.occupancy} /></> },
  { key: "slots", title: "Slots", show: ({ slots }) => <Slots slots={slots} /> },
  { key: "type", title: "Devices", show: ({ slots }) => deviceText(slots) || "–" },
  { key: "version", title: "Version", show: ({ version }) => version },
  { key: "enrolled", title: "Enrolled", show: (agent) => <Moment ms={agent.enrolled_ms} /> },
];

/** Show that faults have closed the agent or some of its slots, with the faults as a tooltip. */
function Faults({ faults }: { faults: Agent["faults"] }) {
  if (faults.length === 0) return null;
  const isWhole = faults.some(({ slot }) => slot === null);
  const slots = faults.map(({ slot }) => slot).join(", ");
  const text = isWhole ? "closed" : `closed: ${faults.length === 1 ? "slot" : "slots"} ${slots}`;
  return <span title={faults.map(({ reason }) => reason).join("\n")}>{text}</span>;
}

/** Show that the agent takes no work for a while, with the reasons and ends as a tooltip. */
function Exclusions({ exclusions }: { exclusions: Agent["exclusions"] }) {
  if (exclusions.length === 0) return null;
  const end = Math.max(...exclusions.map(({ until_ms }) => until_ms));
  return <span title={exclusions.map(({ reason }) => reason).join("\n")}> excluded until <Moment ms={end} /></span>;
}

/** Show that people use the machine, with the reason and the rule for trials as a tooltip. */
function Occupied({ occupancy }: { occupancy: Agent["occupancy"] }) {
  if (!occupancy) return null;
  const rule = occupancy.running === "checkpoint" ? "Running trials leave with a checkpoint." : "Running trials finish.";
  return <span title={`${occupancy.reason}. ${rule}`}> occupied since <Moment ms={occupancy.since_ms} /></span>;
}

/** Return the devices of slots with counts and memory, such as `2 NVIDIA A100 of 80.0 GiB`. */
export function deviceText(slots: Agent["slots"]): string {
  const counts = new Map<string, number>();
  for (const { name, type, memory_mib: mib } of slots) {
    const device = mib ? `${name || type} of ${bytesText(mib * 2 ** 20)}` : name || type;
    counts.set(device, (counts.get(device) ?? 0) + 1);
  }
  return [...counts].map(([device, count]) => `${count} ${device}`).join(", ");
}

function actionsColumn(
  enable: (agent: Agent) => Promise<void>,
  disable: (agent: Agent, drain: boolean) => Promise<void>,
): Column<Agent> {
  return {
    key: "actions",
    title: "Actions",
    show: (agent) => agent.state === "LOST" ? "–" : agent.enabled ? (
      <>
        <Action label="Drain" run={() => disable(agent, true)} />{" "}
        {agent.exclusions.length > 0 && <><Action label="End exclusion" run={() => enable(agent)} />{" "}</>}
        <Action label="Disable" question={`Stop all trials on ${agent.name}? They have 15 s to save a checkpoint.`} run={() => disable(agent, false)} />
      </>
    ) : <Action label="Enable" run={() => enable(agent)} />,
  };
}

function Slots({ slots }: { slots: Agent["slots"] }) {
  const used = slots.filter(({ allocation }) => allocation !== null).length;
  return (
    <span class="slots" role="img" aria-label={`${used} of ${slots.length} slots in use`}>
      {slots.map((slot) => (
        <span key={slot.id} class={`slot ${slot.allocation ? "used" : ""} ${slot.enabled ? "" : "off"}`}
          title={`slot ${slot.id}: ${slot.enabled ? slot.allocations.join(", ") || "free" : "out of use"}`} />
      ))}
    </span>
  );
}
