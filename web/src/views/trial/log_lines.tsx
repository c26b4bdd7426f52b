/** The lines of a log that are shown: in blocks, which come into the document one after another. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { doInTurn } from "../../curves/in_turn";
import { timeText } from "../../parts/format";
import { href, useRoute } from "../../shell/router";
import { blocksToDraw, drawnAround, shownBlocks, BLOCK } from "./log_blocks";
import { shownText, type Line } from "./log_reader";

const KINDS: Record<string, string> = { WARNING: "wait", ERROR: "bad", CRITICAL: "bad" };

interface Props {
  id: number;
  /** The address of the view that shows them. */
  base: (string | number)[];
  lines: readonly Line[];
}

/** The last lines, or those around the line that the address names. */
export function LogLines({ id, base, lines }: Props) {
  const { query } = useRoute();
  const box = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const marked = query.get("line");
  const place = useMemo(() => (marked === null ? -1 : lines.findIndex(({ offset }) => String(offset) === marked)), [lines, marked]);
  const all = shownBlocks(lines.length, place);
  const anchor = place < 0 ? all.end - 1 : Math.floor(place / BLOCK);
  const [drawn, setDrawn] = useState<ReadonlySet<number>>(new Set());
  const here = drawnAround(anchor, all, drawn);
  const next = blocksToDraw(anchor, all, drawn)[0];
  const address = `${href(...base)}?`;
  const kept = withoutLine(query);
  const count = Math.min(lines.length, all.end * BLOCK) - all.first * BLOCK;

  // A task for each block: two thousand lines at once would hold up what the reader does meanwhile.
  useEffect(() => (next === undefined ? undefined : doInTurn(() => setDrawn((before) => new Set(before).add(next)))), [next]);
  useEffect(() => {
    const element = box.current!;
    if (place >= 0) element.querySelector(".marked")?.scrollIntoView({ block: "center" });
    else if (follows.current) element.scrollTop = element.scrollHeight;
  }, [lines.length, place]);
  useEffect(() => {
    if (place < 0 && follows.current) box.current!.scrollTop = box.current!.scrollHeight;
  }, [here.first]);

  return (
    <>
      {count < lines.length && <p class="quiet">{count} of {lines.length} lines are shown; narrow them to see others.</p>}
      <div class="log" ref={box} tabIndex={0} role="log" aria-label={`log of trial ${id}`}
        onScroll={({ currentTarget: log }) => { follows.current = log.scrollHeight - log.scrollTop - log.clientHeight < 40; }}>
        {Array.from({ length: here.end - here.first }, (_, n) => {
          const block = here.first + n;
          const own = lines.slice(block * BLOCK, (block + 1) * BLOCK);
          return <LogBlock key={block} lines={own} link={`${address}${kept}line=`} marked={block === anchor ? marked : null} />;
        })}
      </div>
    </>
  );
}

interface BlockProps {
  lines: readonly Line[];
  /** The address of a line without its number. */
  link: string;
  marked: string | null;
}

/** Some lines, drawn again only where they are others. */
function LogBlock({ lines, link, marked }: BlockProps) {
  return useMemo(() => (
    <div>
      {lines.map((line) => (
        <div key={line.offset} class={`line ${KINDS[line.level ?? ""] ?? ""} ${String(line.offset) === marked ? "marked" : ""}`}>
          <a href={link + line.offset} title={line.time_ms === null ? "link to this line" : new Date(line.time_ms).toISOString()}>{line.time_ms === null ? "--:--:--" : timeText(line.time_ms)} [{line.rank}]</a> {shownText(line.text)}
        </div>
      ))}
    </div>
  ), [lines[0]?.offset, lines.at(-1)?.offset, lines.length, link, marked]);
}

function withoutLine(query: URLSearchParams): string {
  const kept = new URLSearchParams(query);
  kept.delete("line");
  return kept.size ? `${kept}&` : "";
}
