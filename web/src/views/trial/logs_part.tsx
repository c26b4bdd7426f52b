/** A trial's log, line by line: live, narrowed, with links to lines. */

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { ClearButton, NumberField, SearchField } from "../../parts/filter_fields";
import { countText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { setQuery, useRoute } from "../../shell/router";
import { LogDownload } from "./log_download";
import { LogLines } from "./log_lines";
import { LINES_MAX, LogReader } from "./log_reader";
import { toAddressTime, toFieldTime, toMs } from "./log_times";

const LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const FILTERS = ["search", "rank", "level", "since", "until"];

interface Props {
  id: number;
  /** The address of the view that shows it. */
  base: (string | number)[];
  /** Whether it can be narrowed to a rank; a command has one process alone. */
  hasRanks?: boolean;
}

export function LogsPart({ id, base, hasRanks = true }: Props) {
  const { query } = useRoute();
  const wanted = {
    rank: query.get("rank"),
    level: query.get("level"),
    search: query.get("search"),
    since_ms: toMs(query.get("since")),
    until_ms: toMs(query.get("until")),
  };
  const key = `logs ${id} ${JSON.stringify(wanted)}`;
  const reader = useMemo(
    () =>
      new LogReader((after, signal) =>
        get("/api/v1/trials/{trial_id}/logs/lines", { path: { trial_id: id }, query: { ...wanted, after, limit: 500 }, signal }),
      ),
    [key],
  );
  const live = useLive(key, (signal) => reader.readOn(signal), ({ isOpen, isFull }) => (isOpen && !isFull ? "moving" : "still"), "",
    // It only grows, up to twenty thousand lines, except for the last one.
    ({ lines, isOpen, isFull }) => `${lines.length} ${lines.at(-1)?.offset} ${isOpen} ${isFull}`);
  return (
    <>
      <LogFilters hasRanks={hasRanks}><LogDownload key={key} id={id} wanted={wanted} /></LogFilters>
      <Shown live={live}>
        {({ lines, isOpen, isFull }) => (
          <>
            {lines.length === 0
              ? <Empty>{Object.values(wanted).some(Boolean) ? "No lines match these filters." : "No lines yet."}</Empty>
              : <LogLines id={id} base={base} lines={lines} />}
            <p class="quiet" role="status">
              {countText(lines.length, "line")}{isFull ? `; the page reads ${LINES_MAX} at most: narrow them, or use detcloud trial logs ${id}` : isOpen ? ", more may come" : ", complete"}
            </p>
          </>
        )}
      </Shown>
    </>
  );
}

function LogFilters({ hasRanks, children }: { hasRanks: boolean; children: ComponentChildren }) {
  const { query } = useRoute();
  const set = (name: string) => (event: Event) => setQuery({ [name]: (event.currentTarget as HTMLInputElement).value });
  const setTime = (name: string) => (event: Event) => setQuery({ [name]: toAddressTime((event.currentTarget as HTMLInputElement).value) });
  return (
    <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
      <SearchField name="search" title="Text" />
      {hasRanks && <NumberField name="rank" title="Rank" min={0} max={99_999} />}
      <label>Level at least{" "}
        <select value={query.get("level") ?? ""} onChange={set("level")}>
          <option value="">any</option>
          {LEVELS.map((level) => <option key={level}>{level}</option>)}
        </select>
      </label>
      <label>From <input type="datetime-local" step="1" value={toFieldTime(query.get("since"))} onChange={setTime("since")} /></label>
      <label>Until <input type="datetime-local" step="1" value={toFieldTime(query.get("until"))} onChange={setTime("until")} /></label>
      <ClearButton names={FILTERS} />
      {children}
    </form>
  );
}
