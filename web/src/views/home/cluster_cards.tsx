/** What the machines do now, and what this month has cost. */

import { get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { countText, dollarsText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { href } from "../../shell/router";
import { latestMonths } from "../pools/months";

export function MachinesCard() {
  const live = useLive("machines", (signal) => get("/api/v1/cluster", { signal }));
  return (
    <section aria-label="machines" class="card">
      <h2>Machines</h2>
      <Shown live={live}>
        {({ resource_pools: pools }) => pools.length === 0 ? <Empty>The cluster has no pool.</Empty> : (
          <ul class="rows">
            {pools.map(({ name, slots, free_slots: free, queued, agents }) => (
              <li key={name}>
                <span class="row-name"><a href={href("pools", name)}>{name}</a> <span class="quiet">{countText(agents, "agent")}</span></span>
                <span class="row-state">
                  {slots > 0 && <progress value={slots - free} max={slots} aria-label={`${slots - free} of ${slots} slots used`} />}
                </span>
                <span class="row-text">
                  {slots === 0 ? "no slots now" : `${slots - free} of ${countText(slots, "slot")} used`}
                  {queued > 0 && <>, <a href={`${href("jobs")}?pool=${encodeURIComponent(name)}`}>{countText(queued, "job")} in the queue</a></>}
                </span>
              </li>
            ))}
          </ul>
        )}
      </Shown>
    </section>
  );
}

/** The costs of this month, of all users and of `user`; null is everyone. */
export function CostCard({ user }: { user: string | null }) {
  const month = latestMonths(Date.now(), 1)[0]!;
  const live = useLive(`cost ${month.name}`, (signal) =>
    get("/api/v1/cost", { query: { by: "user", since: month.since, until: month.until }, signal }), () => "still");
  return (
    <section aria-label="cost" class="card">
      <h2>Cost of {month.title}</h2>
      <Shown live={live}>
        {({ items, total }) => (
          <dl class="figures">
            <div><dt>machines</dt><dd>{dollarsText(total.instance_cost)}</dd></div>
            <div><dt>idle</dt><dd>{dollarsText(total.idle_cost)}</dd></div>
            {user !== null && <div><dt>my trials</dt><dd>{dollarsText(items.find(({ name }) => name === user)?.cost ?? 0)}</dd></div>}
          </dl>
        )}
      </Shown>
    </section>
  );
}
