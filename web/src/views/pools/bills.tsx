/** The bills of the pools, month by month. */

import { get, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { dollarsText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";
import { latestMonths } from "./months";

const MONTHS = 13;

type Item = Schemas["CostItem"];

const COLUMNS: Column<Item>[] = [
  { key: "pool", title: "Pool", show: ({ name }) => <a href={href("pools", name)}>{name}</a>, value: ({ name }) => name },
  { key: "instances", title: "Instances", isNumber: true, show: (one) => dollarsText(one.instance_cost), value: (one) => one.instance_cost },
  { key: "allocations", title: "Allocations", isNumber: true, show: ({ cost }) => dollarsText(cost), value: ({ cost }) => cost },
  { key: "idle", title: "Idle", isNumber: true, show: (one) => dollarsText(one.idle_cost), value: (one) => one.idle_cost },
];

export function Bills({ mark }: { mark: string }) {
  const { query } = useRoute();
  const months = latestMonths(Date.now(), MONTHS);
  const month = months.find(({ name }) => name === query.get("month")) ?? months[0]!;
  const live = useLive(
    `bills ${month.name}`,
    (signal) => get("/api/v1/cost", { query: { by: "pool", since: month.since, until: month.until }, signal }),
    () => "still",
    mark,
  );
  return (
    <section aria-label="bills">
      <h2>Bills</h2>
      <div class="tools">
        <label>Month (UTC){" "}
          <select value={month.name} onChange={(event) => setQuery({ month: event.currentTarget.value })}>
            {months.map(({ name }) => <option key={name}>{name}</option>)}
          </select>
        </label>
      </div>
      <Shown live={live}>
        {({ items, total }) => items.length === 0 ? <Empty>No costs in {month.title}.</Empty> : (
          <>
            <Table label="bills" rows={items} rowKey={({ name }) => name} columns={COLUMNS} />
            <p class="quiet">
              In all instances {dollarsText(total.instance_cost)}, allocations {dollarsText(total.cost)}, idle {dollarsText(total.idle_cost)}.
            </p>
          </>
        )}
      </Shown>
    </section>
  );
}
