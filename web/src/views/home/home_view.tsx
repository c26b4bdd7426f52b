/** The start page: what runs, what failed, what waits and why, what the month costs, and the machines. */

import { useState } from "preact/hooks";
import { get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { CompareLink } from "../../parts/compare_link";
import { Heading } from "../../parts/heading";
import { Empty, Shown } from "../../parts/status";
import { href, setQuery, useRoute } from "../../shell/router";
import { useWho } from "../../shell/who";
import { CostCard, MachinesCard } from "./cluster_cards";
import { ExperimentRows } from "./experiment_rows";
import { keepLook, lastLookMs } from "./last_look";
import { findJob, WaitingRows } from "./waiting_rows";

const SHOWN_MAX = 8;
// The newest experiments that ended are searched for failures since the last look.
const ENDED_MAX = 50;

export function HomeView() {
  const who = useWho();
  const isEveryone = useRoute().query.get("of") === "everyone";
  // Before the cluster has told who this is, all experiments would be shown for a moment.
  const user = isEveryone ? null : who?.user;
  return (
    <>
      <Heading title="Home" />
      <div class="tools">
        <span class="states" role="group" aria-label="whose work">
          <button aria-pressed={!isEveryone} onClick={() => setQuery({ of: null })}>My work</button>
          <button aria-pressed={isEveryone} onClick={() => setQuery({ of: "everyone" })}>Everyone's</button>
        </span>
      </div>
      {user !== undefined && (
        <div class="home">
          <div>
            <Running user={user} />
            <Failed user={user} />
            <Finished user={user} />
          </div>
          <aside aria-label="cluster">
            <MachinesCard />
            <CostCard user={user} />
          </aside>
        </div>
      )}
    </>
  );
}

function Running({ user }: { user: string | null }) {
  const live = useLive(`running ${user}`, (signal) => loadActive(user, signal));
  return (
    <Shown live={live}>
      {({ running, waiting, hasMore }) => (
        <>
          <section aria-label="running" class="card">
            <h2>Running</h2>
            {running.length ? <ExperimentRows items={running} /> : waiting.length ? <Empty>Nothing runs.</Empty> : <FirstSteps />}
          </section>
          {waiting.length > 0 && (
            <section aria-label="waiting" class="card">
              <h2>Waiting</h2>
              <WaitingRows items={waiting} />
            </section>
          )}
          {hasMore && <p><a href={`${href("experiments")}?state=running,queued,waiting`}>All experiments that run or wait</a></p>}
        </>
      )}
    </Shown>
  );
}

/** The newest active experiments: those with a running trial, and the others with their jobs. */
async function loadActive(user: string | null, signal: AbortSignal) {
  const { items, next_cursor: next } = await get("/api/v1/experiments", { query: { user, state: "ACTIVE", limit: SHOWN_MAX }, signal });
  const waiting = items.filter(({ condition }) => condition !== "running");
  return {
    running: items.filter(({ condition }) => condition === "running"),
    waiting: await Promise.all(waiting.map(async (experiment) => ({ experiment, job: await findJob(experiment.job_id, signal) }))),
    hasMore: next !== null,
  };
}

function FirstSteps() {
  return <Empty>Nothing runs. <a href={href("create")}>Start an experiment</a>, or use <code>detcloud create config.yaml model_dir</code>.</Empty>;
}

function Failed({ user }: { user: string | null }) {
  const [sinceMs, setSince] = useState(lastLookMs(Date.now()));
  const live = useLive(`failed ${user}`, (signal) =>
    get("/api/v1/experiments", { query: { user, state: "ERROR", limit: ENDED_MAX }, signal }), () => "resting");

  function markAsSeen(): void {
    const nowMs = Date.now();
    keepLook(nowMs);
    setSince(nowMs);
  }

  return (
    <Shown live={live}>
      {({ items }) => {
        const fresh = items.filter(({ ended_ms: ended }) => (ended ?? 0) > sinceMs);
        if (fresh.length === 0) return null;
        return (
          <section aria-label="failed" class="card">
            <h2>Failed <button onClick={markAsSeen}>Mark as seen</button></h2>
            <ExperimentRows items={fresh.slice(0, SHOWN_MAX)} />
            {fresh.length > SHOWN_MAX && <p><a href={`${href("experiments")}?state=failed`}>All failed experiments</a></p>}
          </section>
        );
      }}
    </Shown>
  );
}

function Finished({ user }: { user: string | null }) {
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const choose = (id: number, isChosen: boolean) => setChosen((former) => new Set([...former].filter((one) => one !== id).concat(isChosen ? id : [])));
  const live = useLive(`finished ${user}`, (signal) =>
    get("/api/v1/experiments", { query: { user, state: "COMPLETED", limit: SHOWN_MAX }, signal }), () => "resting");
  return (
    <Shown live={live}>
      {({ items }) => items.length === 0 ? null : (
        <section aria-label="finished" class="card">
          <h2>Finished lately <CompareLink ids={items.flatMap(({ id }) => (chosen.has(id!) ? id! : []))} /></h2>
          <ExperimentRows items={items} chosen={chosen} onChoose={choose} />
        </section>
      )}
    </Shown>
  );
}
