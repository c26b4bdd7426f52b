/** The table of experiments: narrowed by a filter, sorted, grouped, chosen from, live. */

import { useState } from "preact/hooks";
import { ApiError, collect, get, type Query, type Schemas } from "../../api/client";
import { motionOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { countText } from "../../parts/format";
import { Heading } from "../../parts/heading";
import { Empty, Shown } from "../../parts/status";
import { Table, type Order } from "../../parts/table";
import { setQuery, useRoute } from "../../shell/router";
import { experimentsLink } from "../projects/projects_view";
import { CurvesContext, useBestCurves } from "./best_curve";
import { BulkActions } from "./bulk_actions";
import { ColumnChoice } from "./column_choice";
import { COLUMNS, columnsOf, keepColumns, shownColumns, valueTitle, type Experiment } from "./columns";
import { FilterBox } from "./filter_box";
import { filterOf, filterQuery } from "./filter_text";
import { groupCountText, groupKey, useGroupCounts } from "./group_counts";
import { isByAge, isNewestFirst, isValueColumn, orderOf } from "./order";
import { SavedViews, type ViewContent } from "./saved_views";

const PAGE = 50;

export function ExperimentsView() {
  const { query } = useRoute();
  const [chosen, setChosen] = useState<Set<string | number>>(new Set());
  const most = Math.max(PAGE, Number(query.get("most")) || PAGE);
  const filter = filterOf(query);
  const order = orderOf(query);
  const columns = shownColumns(query);
  const group = query.get("group") === "project" ? "project" : "";
  const values = columns.filter(isValueColumn);
  const current: ViewContent = { filter, columns, sort: order.by, order: order.descending ? "desc" : "asc", group };
  const live = useLive(
    JSON.stringify([filter, values, order, most]),
    (signal) => listExperiments({ filter, columns: values, sort: current.sort, order: current.order }, most, signal),
    // Other orders than by age read thousands of rows each time.
    ({ items }) => (isByAge(order) && items.some((one) => motionOf(one) === "moving") ? "moving" : "resting"),
  );
  const items = live.value?.items ?? [];
  // The filter box shows this error at the wrong term.
  const isFilterWrong = live.error instanceof ApiError && live.error.details.some(({ path }) => path === "filter");
  const curves = useBestCurves(items, columns.includes("curve"));
  const groups = useGroupCounts(filter, group !== "", items.map(({ id, workspace, project, state }) => `${id} ${workspace}/${project} ${state}`).join());

  function showColumns(keys: string[]): void {
    keepColumns(keys);
    setQuery({ columns: JSON.stringify(keys) });
  }

  function openView(view: ViewContent): void {
    setQuery({ ...filterQuery(view.filter), columns: view.columns.length ? JSON.stringify(view.columns) : null, sort: view.sort, order: view.order, group: view.group || null });
  }

  async function afterAction(done: number[]): Promise<void> {
    setChosen(new Set([...chosen].filter((id) => !done.includes(Number(id)))));
    await live.refresh();
  }

  return (
    <>
      <Heading title="Experiments" />
      <FilterBox text={filter} error={live.error} />
      <div class="tools">
        <SavedViews current={current} onOpen={openView} />
        <ColumnChoice shown={columns} experiments={items} onChange={showColumns} />
        <label><input type="checkbox" checked={group === "project"} onChange={(event) => setQuery({ group: event.currentTarget.checked ? "project" : null })} /> Group by project</label>
      </div>
      {/* Above what is shown: a message about a change stays when the last experiment leaves the list. */}
      <BulkActions chosen={items.filter(({ id }) => chosen.has(id!))} onDone={afterAction} />
      {!isFilterWrong && <Shown live={live}>
        {({ items, next, leftOutBefore }) => items.length === 0 ? (
          <Empty>
            {filter ? "No experiments match these filters." : <>No experiments yet: <code>detcloud create config.yaml model_dir</code></>}
          </Empty>
        ) : (
          <CurvesContext.Provider value={curves}>
            <Table label="experiments" rows={items} rowKey={({ id }) => id!} chosen={chosen} onChoose={setChosen}
              order={order} onOrder={({ by, descending }) => setQuery({ sort: by, order: descending ? "desc" : "asc" })}
              columns={columnsOf(columns).filter(({ key }) => key !== "labels" || items.some(({ labels }) => labels.length > 0))} {...(group && { group: groupOf(groups.value) })} />
            <div class="tools">
              <span class="quiet">{shownText(items.length, next, order)}</span>
              {group && <span class="quiet">{groupNote(groups.value, groups.error)}</span>}
              {leftOutBefore && <span class="quiet">Experiments older than {leftOutBefore} are too many for this order, and left out.</span>}
              {next && <button onClick={() => setQuery({ most: String(most * 2) })}>Show more</button>}
            </div>
          </CurvesContext.Provider>
        )}
      </Shown>}
    </>
  );
}

type Groups = Schemas["ExperimentGroups"] | null | undefined;

/** The project of an experiment, with the number of experiments that match. */
function groupOf(groups: Groups) {
  const counts = new Map((groups?.items ?? []).map((one) => [groupKey(one), one.experiments]));
  return (experiment: Experiment) => {
    const { workspace, project } = experiment;
    const key = groupKey(experiment);
    return {
      key,
      title: <a href={experimentsLink(workspace, project)}>{workspace} / {project}</a>,
      countText: (shown: number) => groupCountText(shown, counts.get(key), groups?.is_exact ?? true),
    };
  };
}

function groupNote(groups: Groups, error: Error | undefined): string {
  if (error) return `Groups have the shown experiments only; the cluster did not count the others: ${error.message}`;
  if (!groups) return "";
  const text = `The filter matches experiments of ${countText(groups.items.length, "project")}.`;
  return groups.left_out_before == null ? text : `${text} Experiments older than ${groups.left_out_before} are not counted.`;
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
  const title = isValueColumn(order.by) ? valueTitle(order.by) : COLUMNS.find((column) => column.order === order.by)?.title.toLowerCase();
  return `${count}${hasMore ? " first" : ""} shown, by ${title}, ${order.descending ? "descending" : "ascending"}`;
}
