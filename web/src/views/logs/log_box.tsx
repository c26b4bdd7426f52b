/** The lines of a source in a box: folded tracebacks, columns of ranks, links to lines, and what was read. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Live } from "../../live/use_live";
import { bytesText, countText } from "../../parts/format";
import { Empty, Shown } from "../../parts/status";
import { useRoute } from "../../shell/router";
import { isOn } from "./log_frame";
import { keyOf, type LogLine } from "./log_line";
import { alignedRows, shownLines, singleRows, type Row } from "./log_rows";
import { LogRowsBox } from "./log_rows_box";
import type { LineSource, WindowState } from "./log_window";
import { drawRow } from "./line_row";

interface Props {
  label: string;
  source: LineSource;
  live: Live<WindowState>;
  isNarrowed: boolean;
  hasRanks: boolean;
  /** The ranks that have a column; empty for a single column. */
  columns: readonly number[];
  marked: string | null;
  linkOf: (line: LogLine) => string;
  /** The first and the last visible line have changed. */
  onSee: (first: LogLine, last: LogLine) => void;
  /** What stands beside the status. */
  children?: ComponentChildren;
}

export function LogBox(props: Props) {
  const { live, isNarrowed } = props;
  const { value } = live;
  // A search goes on as long as the cluster answers; after a failure the live value waits.
  useEffect(() => { if (value?.isSearching) void live.refresh(); }, [value]);
  return (
    <Shown live={live}>
      {(state) => (
        <>
          {state.lines.length === 0
            ? <Empty>{state.isSearching ? "Searching the log …" : isNarrowed ? "No lines match these filters." : "No lines yet."}</Empty>
            : <Lines {...props} state={state} />}
          <p class="log-foot quiet">
            <span role="status">{statusText(state)}</span>{props.children && <>. {props.children}</>}
          </p>
        </>
      )}
    </Shown>
  );
}

function Lines({ label, source, live, hasRanks, columns, marked, linkOf, onSee, state }: Props & { state: WindowState }) {
  const { query } = useRoute();
  const isFolded = isOn(query, "fold", false);
  const [others, setOthers] = useState<ReadonlySet<string>>(new Set());
  useEffect(() => setOthers(new Set()), [isFolded]);
  const names = columns.join();
  const rows = useMemo(() => {
    const shown = shownLines(state.lines, { isFolded, others });
    return columns.length > 1 ? alignedRows(shown, columns) : singleRows(shown);
  }, [state.version, isFolded, others, names]);
  const latest = useRef(state);
  latest.current = state;
  const onFold = (key: string) => setOthers((former) => {
    const next = new Set(former);
    if (!next.delete(key)) next.add(key);
    return next;
  });
  const form = { hasTimes: isOn(query, "times", true), hasRanks: hasRanks && columns.length < 2, linkOf, marked, onFold };
  const isSideBySide = columns.length > 1;
  return (
    <LogRowsBox
      key={`${state.opening} ${names}`}
      label={label} rows={rows} aim={rowOf(rows, marked ?? state.target)} isAtEnd={!state.hasLater}
      isWrapped={isOn(query, "wrap", true)} class={isSideBySide ? `columns-${columns.length}` : ""}
      head={isSideBySide && <div class="log-cells log-head">{columns.map((rank) => <div key={rank}>rank {rank}</div>)}</div>}
      draw={(row) => drawRow(row, form)}
      onNear={(side) => {
        const { hasEarlier, hasLater, isSearching } = latest.current;
        if (isSearching || !(side === "earlier" ? hasEarlier : hasLater)) return;
        source.want(side);
        void live.refresh();
      }}
      onFollow={(follows) => { source.follows = follows; }}
      onSee={(first, last) => onSee(lineOf(first), lineOf(last))}
    />
  );
}

/** The key of the row with the marked line. */
function rowOf(rows: readonly Row[], marked: string | null): string | null {
  if (marked === null) return null;
  return rows.find(({ cells }) => cells.some((cell) => cell && keyOf(cell.line) === marked))?.key ?? marked;
}

function lineOf({ cells }: Row): LogLine {
  return cells.find((cell) => cell !== undefined)!.line;
}

/** What the page has read of the log. */
export function statusText({ lines, hasEarlier, hasLater, isOpen, isSearching, size, notice }: WindowState): string {
  const isWhole = !hasEarlier && !hasLater;
  const count = countText(lines.length, "line");
  const of = size === null ? "" : ` of a log of ${bytesText(size)}`;
  const end = hasLater ? "" : isOpen ? ", more may come" : isWhole ? ", complete" : ", up to its end";
  return [isWhole ? `${count}${end}` : `${count} are here${of}${end}`, isSearching && "searching …", notice].filter(Boolean).join("; ");
}
