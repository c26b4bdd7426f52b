/** The list of experiments: narrowed, sorted, chosen from, live. */

import { useState } from "preact/hooks";
import { collect, get, type Query } from "../../api/client";
import { motionOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { Heading } from "../../parts/heading";
import { Empty, Shown } from "../../parts/status";
import { Table, type Order } from "../../parts/table";
import { setQuery, useRoute } from "../../shell/router";
import { BulkActions } from "./bulk_actions";
import { COLUMNS, keepColumns, shownColumns } from "./columns";
import { FILTERS, Filters } from "./filters";
import { isByAge, isNewestFirst, orderOf } from "./order";

const PAGE = 50;

export function ExperimentsView() {
  const { query } = useRoute();
  const [chosen, setChosen] = useState<Set<string | number>>(new Set());
  const [columns, setColumns] = useState(shownColumns());
  const most = Math.max(PAGE, Number(query.get("most")) || PAGE);
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, query.get(name)]));
  const order = orderOf(query);
  const isFiltered = FILTERS.some((name) => query.get(name));
  const live = useLive(
    JSON.stringify([wanted, order, most]),
    (signal) => listExperiments({ ...wanted, sort: order.by, order: order.descending ? "desc" : "asc" }, most, signal),
    // Other orders than by age read thousands of rows each time.
    ({ items }) => (isByAge(order) && items.some((one) => motionOf(one) === "moving") ? "moving" : "resting"),
  );

  function showColumn(key: string, isShown: boolean): void {
    const kept = COLUMNS.map((column) => column.key).filter((one) => (one === key ? isShown : columns.includes(one)));
    setColumns(kept);
    keepColumns(kept);
  }

  async function afterAction(done: number[]): Promise<void> {
    setChosen(new Set([...chosen].filter((id) => !done.includes(Number(id)))));
    await live.refresh();
  }

  return (
    <>
      <Heading title="Experiments" />
      <Filters />
      <Shown live={live}>
        {({ items, next, leftOutBefore }) => {
          const here = items.filter(({ id }) => chosen.has(id!));
          return items.length === 0 ? (
            <Empty>
              {isFiltered ? "No experiments match these filters." : <>No experiments yet: <code>detcloud create config.yaml model_dir</code></>}
            </Empty>
          ) : (
            <>
              <BulkActions chosen={here} onDone={afterAction} />
              <Table label="experiments" rows={items} rowKey={({ id }) => id!} chosen={chosen} onChoose={setChosen}
                order={order} onOrder={({ by, descending }) => setQuery({ sort: by, order: descending ? "desc" : "asc" })}
                columns={COLUMNS.filter(({ key }) => columns.includes(key))} />
              <div class="tools">
                <span class="quiet">{shownText(items.length, next, order)}</span>
                {leftOutBefore && <span class="quiet">Experiments older than {leftOutBefore} are too many for this order, and left out.</span>}
                {next && <button onClick={() => setQuery({ most: String(most * 2) })}>Show more</button>}
                <details>
                  <summary>Columns</summary>
                  {COLUMNS.map(({ key, title }) => (
                    <label key={key}>
                      <input type="checkbox" checked={columns.includes(key)}
                        onChange={(event) => showColumn(key, event.currentTarget.checked)} /> {title}{" "}
                    </label>
                  ))}
                </details>
              </div>
            </>
          );
        }}
      </Shown>
    </>
  );
}

/** The experiments in the order of a query, and the id below which the cluster looked at none. */
async function listExperiments(query: Query, most: number, signal: AbortSignal) {
  let leftOutBefore: number | null | undefined;
  const list = await collect(async (cursor) => {
    const page = await get("/api/v1/experiments", { query: { ...query, limit: Math.min(most, 500), cursor }, signal });
    leftOutBefore = page.left_out_before;
    return page;
  }, most);
  return { ...list, leftOutBefore };
}

function shownText(count: number, hasMore: boolean, order: Order): string {
  if (isNewestFirst(order)) return `${count}${hasMore ? " newest" : ""} shown, newest first`;
  const title = COLUMNS.find((column) => column.order === order.by)?.title.toLowerCase();
  return `${count}${hasMore ? " first" : ""} shown, by ${title}, ${order.descending ? "descending" : "ascending"}`;
}
