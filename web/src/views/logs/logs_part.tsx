/** The log of a trial: live, narrowed, with links to lines, errors, and several ranks side by side. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { PlainField } from "./plain_field";
import { href, setQuery, useRoute } from "../../shell/router";
import { ErrorTools } from "./error_tools";
import { LogBox } from "./log_box";
import { TrialDownload } from "./log_download";
import { LogFrame } from "./log_frame";
import type { LogLine } from "./log_line";
import { COLUMNS_MAX, parseRanks } from "./log_rows";
import { errorsOf, isNarrowed, wantedOf, type Wanted } from "./log_settings";
import { LogWindow, type LoadPage, type WindowState } from "./log_window";
import { useNarrow } from "./use_narrow";

interface Props {
  id: number;
  /** The address of the view that shows the log. */
  base: (string | number)[];
  /** Whether the log may have lines of several ranks; a command has a single process. */
  hasRanks?: boolean;
}

export function LogsPart({ id, base, hasRanks = true }: Props) {
  const { query } = useRoute();
  const isPhone = useNarrow();
  const [shownRank, setShownRank] = useState(0);
  const listed = query.get("ranks") ?? "";
  const ranks = hasRanks ? parseRanks(listed) : [];
  const columns = ranks ?? [];
  const isOneAtATime = isPhone && columns.length > 1;
  const shown = isOneAtATime ? [columns[shownRank % columns.length]!] : columns;
  const wanted = { ...wantedOf(query), ...(shown.length > 0 && { rank: shown.map(String) }) };
  return (
    <LogFrame
      hasRanks={hasRanks && columns.length === 0} filters={["ranks"]}
      fields={hasRanks && <RankColumns text={listed} isWrong={ranks === undefined} />}
      beside={<TrialDownload key={JSON.stringify(wanted)} id={id} wanted={wanted} />}
    >
      {isOneAtATime && (
        <div class="tools" role="group" aria-label="rank">
          {columns.map((rank, place) => (
            <button type="button" key={rank} aria-pressed={rank === shown[0]} onClick={() => setShownRank(place)}>rank {rank}</button>
          ))}
        </div>
      )}
      <TrialLog id={id} base={base} hasRanks={hasRanks} columns={isOneAtATime ? [] : columns} wanted={wanted} />
    </LogFrame>
  );
}

function RankColumns({ text, isWrong }: { text: string; isWrong: boolean }) {
  return (
    <>
      <PlainField name="ranks" title="Side by side" placeholder="ranks: 0, 1" isWrong={isWrong} />
      {isWrong && <span class="bad" role="alert">Side by side: {text} is no list of at most {COLUMNS_MAX} ranks; write for example 0, 1</span>}
    </>
  );
}

interface TrialLogProps extends Props {
  hasRanks: boolean;
  columns: readonly number[];
  wanted: Wanted;
}

function TrialLog({ id, base, hasRanks, columns, wanted }: TrialLogProps) {
  const { query } = useRoute();
  const name = `${id} ${JSON.stringify(wanted)}`;
  const line = query.get("line");
  const marked = line !== null && /^\d{1,15}$/.test(line) ? Number(line) : null;
  const source = useMemo(() => new LogWindow(loaderOf(id, wanted), marked), [name]);
  const live = useLive(`logs ${name}`, (signal) => source.read(signal), motionOf, "", textOf);
  const seen = useRef<readonly [number, number]>([0, 0]);
  const [place, setPlace] = useState(0);
  const { value: state } = live;
  useEffect(() => {
    if (marked === null || state === undefined || state.lines.some(({ offset }) => offset === marked)) return;
    source.openAt(marked);
    void live.refresh();
  }, [marked]);

  function openAt(start: number | null): void {
    setQuery({ line: null });
    source.openAt(start);
    void live.refresh();
  }

  function onSee(first: LogLine, last: LogLine): void {
    seen.current = [first.offset, last.offset];
    setPlace(first.offset);
  }

  return (
    <>
      <div class="tools log-tools">
        <ErrorTools name={name} load={loaderOf(id, errorsOf(wanted))} mark={`${state?.size}`} marked={marked} seen={() => seen.current} />
        {state && (state.hasEarlier || state.hasLater) && <Places size={state.size} place={place} openAt={openAt} />}
        {marked !== null && isNarrowed(wanted) && <a href={`${href(...base)}?line=${marked}`}>Show the line among all lines</a>}
      </div>
      <LogBox label={`log of trial ${id}`} source={source} live={live} isNarrowed={isNarrowed(wanted)} hasRanks={hasRanks} columns={columns}
        marked={marked === null ? null : String(marked)} linkOf={({ offset }) => addressOf(base, query, offset)} onSee={onSee} />
    </>
  );
}

interface PlacesProps {
  /** The size of the log; null if the lines come from several logs. */
  size: number | null;
  place: number;
  /** Go to a place; null for the end of the log. */
  openAt: (start: number | null) => void;
}

/** The reader's place in a long log. */
export function Places({ size, place, openAt }: PlacesProps) {
  return (
    <>
      <button type="button" onClick={() => openAt(0)}>Beginning</button>
      {size !== null && <label class="log-place">Place{" "}
        <input type="range" min={0} max={size} step={1} value={place} aria-valuetext={`${Math.round((100 * place) / Math.max(1, size))} percent of the log`}
          onChange={(event) => openAt(Number(event.currentTarget.value))} />
      </label>}
      <button type="button" onClick={() => openAt(null)}>End</button>
    </>
  );
}

function loaderOf(id: number, wanted: Wanted): LoadPage {
  return (place, signal) => get("/api/v1/trials/{trial_id}/logs/lines", { path: { trial_id: id }, query: { ...wanted, ...place }, signal });
}

/** How the state of a source can change: by itself while the log grows, or while a search continues. */
export function motionOf({ isOpen, hasLater, isSearching }: WindowState): "moving" | "still" {
  return isSearching || (isOpen && !hasLater) ? "moving" : "still";
}

export function textOf({ version, hasEarlier, hasLater, isOpen, isSearching, size, notice, opening }: WindowState): string {
  return `${opening} ${version} ${hasEarlier} ${hasLater} ${isOpen} ${isSearching} ${size} ${notice}`;
}

/** The address of a line, with the present filters. */
function addressOf(base: (string | number)[], query: URLSearchParams, offset: number): string {
  const kept = new URLSearchParams(query);
  kept.set("line", String(offset));
  return `${href(...base)}?${kept}`;
}
