/** The job queue of a pool: its order, why each job waits, and how to change that. */

import { useState } from "preact/hooks";
import { collect, get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Heading } from "../../parts/heading";
import { Empty, Shown } from "../../parts/status";
import { href, setQuery, useRoute } from "../../shell/router";
import { UndoMessage, type Undoable } from "../experiments/undo";
import "./jobs.css";
import { Queue } from "./queue";

// As many as one answer has room for, with reasons of some length.
const PAGE = 200;

export function JobsView() {
  const { query } = useRoute();
  const chosen = query.get("pool");
  const most = Math.max(PAGE, Number(query.get("most")) || PAGE);
  const [done, setDone] = useState<Undoable | null>(null);
  const pools = useLive("pools", (signal) =>
    collect((cursor) => get("/api/v1/resource-pools", { query: { limit: 500, cursor }, signal })), () => "still");
  const live = useLive(`jobs ${chosen} ${most}`, (signal) =>
    collect((cursor) => get("/api/v1/jobs", { query: { resource_pool: chosen, limit: PAGE, cursor }, signal }), most));
  const names = pools.value?.items ?? [];
  const current = chosen ?? names.find(({ default_for: kinds }) => kinds.includes("compute"))?.name ?? "";

  async function afterChange(undoable?: Undoable): Promise<void> {
    if (undoable) setDone({ ...undoable, undo: () => undoable.undo().finally(live.refresh) });
    await live.refresh();
  }

  return (
    <>
      <Heading title="Job queue" />
      <div class="tools">
        <label>Pool{" "}
          <select value={current} onChange={(event) => setQuery({ pool: event.currentTarget.value, most: null })}>
            {names.map(({ name, queued }) => <option key={name} value={name}>{name} ({queued} waiting)</option>)}
          </select>
        </label>
      </div>
      <Shown live={live}>
        {({ items, next }) => items.length === 0 ? <Empty>No jobs in this pool. Ended jobs are in the lists of <a href={href("experiments")}>experiments</a> and of <a href={href("commands")}>commands</a>.</Empty> : (
          <>
            <Queue jobs={items} pools={names.map(({ name }) => name)} onChanged={afterChange} />
            {next && (
              <div class="tools">
                <span class="quiet">The first {items.length} jobs are shown.</span>
                <button onClick={() => setQuery({ most: String(most * 2) })}>Show more</button>
              </div>
            )}
          </>
        )}
      </Shown>
      {/* Outside the queue, so that the message stays if the last job leaves the queue. */}
      {done && <UndoMessage done={done} onClose={() => setDone(null)} />}
    </>
  );
}
