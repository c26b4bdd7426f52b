/** The use of slots: a map of the days of each pool, and the experiments with the most wasted money. */

import { get, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { dollarsText } from "../../parts/format";
import { Heading } from "../../parts/heading";
import { Empty, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import { mapOfDays, wastedShare } from "./use_map";
import "./usage.css";

type Item = Schemas["UsageItem"];

const WASTERS_MAX = 50;

const COLUMNS: Column<Item>[] = [
  { key: "name", title: "Experiment", show: ({ name }) => <a href={href("experiments", name)}>{name}</a>, value: ({ name }) => Number(name) },
  { key: "title", title: "Name", show: ({ title }) => title || "–", value: ({ title }) => title },
  { key: "hours", title: "Slot hours", show: ({ slot_hours: hours }) => hoursText(hours), value: ({ slot_hours: hours }) => hours, isNumber: true },
  { key: "use", title: "Use", show: (item) => percentText(item.use_percent), value: (item) => item.use_percent, isNumber: true },
  { key: "memory", title: "Memory", show: (item) => percentText(item.memory_percent), value: (item) => item.memory_percent, isNumber: true },
  { key: "cost", title: "Cost", show: ({ cost }) => dollarsText(cost), value: ({ cost }) => cost, isNumber: true },
  { key: "wasted", title: "Wasted", show: ({ wasted }) => dollarsText(wasted), value: ({ wasted }) => wasted, isNumber: true },
];

export function UsageView() {
  const live = useLive("usage", async (signal) => {
    const [days, experiments] = await Promise.all([
      get("/api/v1/usage", { query: { by: "pool-day" }, signal }),
      get("/api/v1/usage", { query: { by: "experiment" }, signal }),
    ]);
    return { days, experiments };
  }, () => "still");
  return (
    <>
      <Heading title="Usage" />
      <Shown live={live}>
        {({ days, experiments }) => (
          <>
            <p>
              {days.since} to {days.until}: {hoursText(days.total.slot_hours)} slot hours, mean use{" "}
              {percentText(days.total.use_percent)}. Paid {dollarsText(days.total.instance_cost)}, of which wasted{" "}
              {dollarsText(days.total.wasted)}: idle {dollarsText(days.total.idle_cost)}, low use {dollarsText(days.total.low_cost)}.
            </p>
            {days.items.length === 0
              ? <Empty>No slot was used in this month.</Empty>
              : (
                <>
                  <h2>Mean use of each day in percent</h2>
                  <UseMap items={days.items} />
                  <h2>Experiments with the most wasted money</h2>
                  <Table label="wasters" columns={COLUMNS} rows={experiments.items.slice(0, WASTERS_MAX)} rowKey={({ name }) => name} />
                </>
              )}
          </>
        )}
      </Shown>
    </>
  );
}

/** A row for each pool and a cell for each day. The darker a cell, the higher is the use. */
function UseMap({ items }: { items: Item[] }) {
  const { days, pools } = mapOfDays(items);
  return (
    <div class="use-map">
      <table aria-label="mean use of each day">
        <thead>
          <tr><th scope="col">Pool</th>{days.map((day) => <th scope="col" key={day}>{day.slice(5)}</th>)}</tr>
        </thead>
        <tbody>
          {pools.map(({ pool, cells }) => (
            <tr key={pool}>
              <th scope="row"><a href={href("pools", pool)}>{pool}</a></th>
              {cells.map((item, place) => <UseCell key={days[place]} item={item} />)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function UseCell({ item }: { item: Item | undefined }) {
  if (!item) return <td />;
  const share = wastedShare(item);
  const title = `${hoursText(item.slot_hours)} slot hours, wasted ${dollarsText(item.wasted)}`
    + (share === null ? "" : ` (${percentText(100 * share)} of what was paid)`);
  return <td title={title} style={{ "--use": `${item.use_percent ?? 0}%` }}>{item.use_percent === null ? "–" : Math.round(item.use_percent)}</td>;
}

/** Hours with a decimal, or with three decimals below an hour. */
function hoursText(hours: number): string {
  return hours.toFixed(hours > 0 && hours < 1 ? 3 : 1);
}

function percentText(percent: number | null): string {
  return percent === null ? "–" : `${percent.toFixed(1)} %`;
}
