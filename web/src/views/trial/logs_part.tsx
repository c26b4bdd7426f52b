/** A trial's log, line by line: live, narrowed, with links to lines. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { ClearButton, NumberField, SearchField } from "../../parts/filter_fields";
import { countText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { href, setQuery, useRoute } from "../../shell/router";
import { LogDownload } from "./log_download";
import { LINES_MAX, LogReader, type Line } from "./log_reader";
import { toAddressTime, toFieldTime, toMs } from "./log_times";

const LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const KINDS: Record<string, string> = { WARNING: "wait", ERROR: "bad", CRITICAL: "bad" };
const FILTERS = ["search", "rank", "level", "since", "until"];
const SHOWN_MAX = 2000;

export function LogsPart({ id }: { id: number }) {
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
  const live = useLive(key, (signal) => reader.readOn(signal), ({ isOpen, isFull }) => (isOpen && !isFull ? "moving" : "still"));
  return (
    <>
      <LogFilters><LogDownload key={key} id={id} wanted={wanted} /></LogFilters>
      <Shown live={live}>
        {({ lines, isOpen, isFull }) => (
          <>
            {lines.length === 0
              ? <Empty>{Object.values(wanted).some(Boolean) ? "No line is like that." : "No lines yet."}</Empty>
              : <LogLines id={id} lines={lines} />}
            <p class="quiet" role="status">
              {countText(lines.length, "line")}{isFull ? `; the page reads ${LINES_MAX} at most: narrow them, or use detcloud trial logs ${id}` : isOpen ? ", more may come" : ", complete"}
            </p>
          </>
        )}
      </Shown>
    </>
  );
}

function LogFilters({ children }: { children: ComponentChildren }) {
  const { query } = useRoute();
  const set = (name: string) => (event: Event) => setQuery({ [name]: (event.currentTarget as HTMLInputElement).value });
  const setTime = (name: string) => (event: Event) => setQuery({ [name]: toAddressTime((event.currentTarget as HTMLInputElement).value) });
  return (
    <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
      <SearchField name="search" title="Text" />
      <NumberField name="rank" title="Rank" min={0} max={99_999} />
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

/** The last lines, or those around the line that the address names. */
function LogLines({ id, lines }: { id: number; lines: readonly Line[] }) {
  const { query } = useRoute();
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const marked = query.get("line");
  const place = marked === null ? -1 : lines.findIndex(({ offset }) => String(offset) === marked);
  const end = place < 0 ? lines.length : Math.min(lines.length, place + SHOWN_MAX / 2);
  const shown = lines.slice(Math.max(0, end - SHOWN_MAX), end);

  useEffect(() => {
    const element = box.current!;
    if (place >= 0) element.querySelector(".marked")?.scrollIntoView({ block: "center" });
    else if (follows.current) element.scrollTop = element.scrollHeight;
  }, [lines.length, place]);

  return (
    <>
      {shown.length < lines.length && <p class="quiet">{shown.length} of {lines.length} lines are shown; narrow them to see others.</p>}
      <div class="log" ref={box} tabIndex={0} role="log" aria-label={`log of trial ${id}`}
        onScroll={({ currentTarget: log }) => { follows.current = log.scrollHeight - log.scrollTop - log.clientHeight < 40; }}>
        {shown.map((line) => (
          <div key={line.offset} class={`line ${KINDS[line.level ?? ""] ?? ""} ${String(line.offset) === marked ? "marked" : ""}`}>
            <a href={lineLink(id, line, query)} title={line.time_ms === null ? "link to this line" : new Date(line.time_ms).toISOString()}>{timeText(line.time_ms)} [{line.rank}]</a> {line.text}
          </div>
        ))}
      </div>
    </>
  );
}

function lineLink(id: number, line: Line, query: URLSearchParams): string {
  const kept = new URLSearchParams(query);
  kept.set("line", String(line.offset));
  return `${href("trials", id, "logs")}?${kept}`;
}

function timeText(ms: number | null): string {
  return ms === null ? "--:--:--" : new Date(ms).toLocaleTimeString(undefined, { hour12: false });
}
