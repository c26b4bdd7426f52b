/** The list of experiments: narrowed, chosen from, live. */

import { useState } from "preact/hooks";
import { collect, get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Empty, Shown } from "../../parts/status";
import { Table } from "../../parts/table";
import { setQuery, useRoute } from "../../shell/router";
import { motionOf } from "../experiment/experiment_view";
import { BulkActions } from "./bulk_actions";
import { COLUMNS, keepColumns, shownColumns } from "./columns";
import { FILTERS, Filters } from "./filters";

const PAGE = 50;

export function ExperimentsView() {
  const { query } = useRoute();
  const [chosen, setChosen] = useState<Set<string | number>>(new Set());
  const [columns, setColumns] = useState(shownColumns());
  const most = Math.max(PAGE, Number(query.get("most")) || PAGE);
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, query.get(name)]));
  const isFiltered = FILTERS.some((name) => query.get(name));
  const live = useLive(
    JSON.stringify([wanted, most]),
    (signal) =>
      collect((cursor) => get("/api/v1/experiments", { query: { ...wanted, limit: Math.min(most, 500), cursor }, signal }), most),
    ({ items }) => (items.some((one) => motionOf(one) === "moving") ? "moving" : "resting"),
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
      <h1>Experiments</h1>
      <Filters />
      <Shown live={live}>
        {({ items, next }) => {
          const here = items.map(({ id }) => id!).filter((id) => chosen.has(id));
          return items.length === 0 ? (
            <Empty>
              {isFiltered ? "No experiment is like that." : <>No experiments yet: <code>detcloud create config.yaml model_dir</code></>}
            </Empty>
          ) : (
            <>
              <BulkActions ids={here} onDone={afterAction} />
              <Table label="experiments" rows={items} rowKey={({ id }) => id!} chosen={chosen} onChoose={setChosen}
                columns={COLUMNS.filter(({ key }) => columns.includes(key))} />
              <div class="tools">
                <span class="quiet">{items.length}{next ? " newest" : ""} shown, newest first</span>
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
