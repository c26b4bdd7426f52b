/** What happened to an experiment and its trials, or to one of them, in sentences with their reasons. */

import { collect, get } from "../../api/client";
import { markOf, motionOfParts, type Owner } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { Empty, Moment, Shown } from "../../parts/status";
import { setQuery, useRoute } from "../../shell/router";

const PAGE = 500;

interface Props {
  experiment: number;
  /** The experiment or trial whose state says whether more may happen. */
  owner: Owner;
  /** The trial whose history alone it is. */
  trial?: number;
}

export function HistoryPart({ experiment, owner, trial }: Props) {
  const { query } = useRoute();
  const most = Math.max(PAGE, Number(query.get("most")) || PAGE);
  const isOwn = query.get("trials") === "without";
  const isOldestFirst = query.get("order") === "asc";
  const wanted = { limit: PAGE, actor: trial ? `trial#${trial}` : null, trials: isOwn ? false : null, order: isOldestFirst ? "asc" : "desc" };
  const live = useLive(
    `history ${experiment} ${most} ${JSON.stringify(wanted)}`,
    (signal) =>
      collect((cursor) => get("/api/v1/experiments/{experiment_id}/history", { path: { experiment_id: experiment }, query: { ...wanted, cursor }, signal }), most),
    () => motionOfParts(owner),
    markOf(owner),
  );
  return (
    <>
      <div class="tools">
        <label>
          <input type="checkbox" checked={isOldestFirst}
            onChange={(event) => setQuery({ order: event.currentTarget.checked ? "asc" : null })} /> Oldest first
        </label>
        {!trial && (
          <label>
            <input type="checkbox" checked={isOwn}
              onChange={(event) => setQuery({ trials: event.currentTarget.checked ? "without" : null })} /> Without its trials
          </label>
        )}
      </div>
      <Shown live={live}>
        {({ items, next }) => items.length === 0 ? <Empty>No events yet.</Empty> : (
          <>
            <ol class="history">
              {items.map((event) => (
                <li key={`${event.actor} ${event.revision} ${event.text}`}>
                  <Moment ms={event.time_ms} /> {!trial && <span class="quiet">{event.actor.replace("#", " ")}</span>} {event.text}
                  {event.reasons.length > 0 && <ul>{event.reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul>}
                </li>
              ))}
            </ol>
            {next && (
              <div class="tools">
                <span class="quiet">The {isOldestFirst ? "first" : "newest"} {items.length} are shown.</span>
                <button onClick={() => setQuery({ most: String(most * 2) })}>Show more</button>
              </div>
            )}
          </>
        )}
      </Shown>
    </>
  );
}
