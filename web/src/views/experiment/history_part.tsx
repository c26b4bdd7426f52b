/** What happened to an experiment and its trials, in sentences with their reasons. */

import { collect, get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Empty, Moment, Shown } from "../../parts/status";
import { motionOfParts, type ExperimentWhole } from "./experiment_view";

const EVENTS_MAX = 500;

export function HistoryPart({ experiment }: { experiment: ExperimentWhole }) {
  const id = experiment.id!;
  const live = useLive(
    `history ${id}`,
    (signal) =>
      collect((cursor) => get("/api/v1/experiments/{experiment_id}/history", { path: { experiment_id: id }, query: { limit: 500, cursor }, signal }), EVENTS_MAX),
    () => motionOfParts(experiment),
    experiment.state,
  );
  return (
    <Shown live={live}>
      {({ items, next }) => items.length === 0 ? <Empty>Nothing happened yet.</Empty> : (
        <>
          <ol class="history">
            {items.map((event) => (
              <li key={`${event.actor} ${event.revision} ${event.text}`}>
                <Moment ms={event.time_ms} /> <span class="quiet">{event.actor}</span> {event.text}
                {event.reasons.length > 0 && <ul>{event.reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul>}
              </li>
            ))}
          </ol>
          {next && <p class="quiet">The first {items.length}; <code>detcloud experiment history {id}</code> has all.</p>}
        </>
      )}
    </Shown>
  );
}
