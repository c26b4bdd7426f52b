/** The scrolled box of a log's rows. A few rows around the visible rows are in the document. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Side } from "./log_window";
import type { Row } from "./log_rows";
import { RowHeights } from "./row_heights";

// Lines on a side are wanted when the reader is so many heights of the box away from the end.
const AHEAD = 2;
// A few pixels above the end still count as the end.
const END_PIXELS = 40;

interface Props {
  label: string;
  rows: readonly Row[];
  /** The key of the row that the reader came for; null for the end of the log. */
  aim: string | null;
  /** Whether the rows end with the end of the log. */
  isAtEnd: boolean;
  isWrapped: boolean;
  class?: string;
  head?: ComponentChildren;
  draw: (row: Row) => ComponentChildren;
  /** The reader came near an end of the rows. */
  onNear: (side: Side) => void;
  onFollow: (follows: boolean) => void;
  /** The first visible row has changed. */
  onSee: (first: Row, last: Row) => void;
}

interface Anchor {
  key: string;
  /** The distance of the row from the top of the box. */
  below: number;
}

export function LogRowsBox(props: Props) {
  const { label, rows, aim, isAtEnd, isWrapped, head, draw, onNear, onFollow, onSee } = props;
  const box = useRef<HTMLDivElement>(null);
  const body = useRef<HTMLDivElement>(null);
  const follows = useRef(aim === null);
  const hadFocus = useRef(false);
  const reached = useRef<string | null>(null);
  const seen = useRef<readonly Row[]>([]);
  const anchor = useRef<Anchor | null>(null);
  const heights = useRef<RowHeights | null>(null);
  heights.current ??= new RowHeights();
  const keys = useMemo(() => rows.map(({ key }) => key), [rows]);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [, drawAgain] = useState({});
  heights.current.setKeys(keys);
  const top = follows.current && isAtEnd ? heights.current.top(keys.length) - view.height : view.top;
  const drawn = heights.current.drawn(top, view.height);

  useEffect(() => {
    const element = box.current!;
    let width = element.clientWidth;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth !== width) heights.current!.clear();
      width = element.clientWidth;
      setView(({ top }) => ({ top, height: element.clientHeight }));
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => heights.current!.clear(), [isWrapped]);
  useLayoutEffect(() => {
    // Once: the row may leave the window and come back while the reader looks elsewhere.
    const place = aim === null || aim === reached.current ? -1 : keys.indexOf(aim);
    if (aim !== null && place < 0) return;
    reached.current = aim;
    if (aim === null) return;
    setFollows(false);
    const element = box.current!;
    const top = heights.current!.top(place);
    const isVisible = top >= element.scrollTop && heights.current!.top(place + 1) <= element.scrollTop + element.clientHeight;
    anchor.current = { key: aim, below: isVisible ? top - element.scrollTop : element.clientHeight / 3 };
    drawAgain({});
  }, [aim, keys]);
  // After each drawing: the heights are known then, and the rows keep their place on the screen.
  useLayoutEffect(() => {
    const element = box.current!;
    const isChanged = measureRows(body.current!, heights.current!);
    const top = wantedTop(element);
    if (top !== null && Math.abs(element.scrollTop - top) > 1) element.scrollTop = top;
    if (isChanged || Math.abs(element.scrollTop - view.top) > element.clientHeight / 2) look();
    see(element);
    wantMore(element);
    if (document.activeElement === document.body && hadFocus.current) element.focus({ preventScroll: true });
  });

  function wantedTop(element: HTMLElement): number | null {
    if (follows.current && isAtEnd) return element.scrollHeight - element.clientHeight;
    if (anchor.current === null) return null;
    const place = keys.indexOf(anchor.current.key);
    return place < 0 ? null : Math.max(0, heights.current!.top(place) - anchor.current.below);
  }

  function setFollows(next: boolean): void {
    follows.current = next;
    onFollow(next);
  }

  function look(): void {
    const { scrollTop: top, clientHeight: height } = box.current!;
    setView({ top, height });
  }

  /** Report the first and the last visible row, if they have changed. */
  function see({ scrollTop: top, clientHeight: height }: HTMLElement): void {
    const first = rows[heights.current!.rowAt(top)];
    const last = rows[heights.current!.rowAt(top + height)];
    if (!first || !last || (first === seen.current[0] && last === seen.current[1])) return;
    seen.current = [first, last];
    onSee(first, last);
  }

  /** The row that keeps its place: the row that the reader came for while visible, else the first visible row. */
  function anchorPlace(top: number, height: number): number {
    const aimed = aim === null ? -1 : keys.indexOf(aim);
    const below = aimed < 0 ? -1 : heights.current!.top(aimed) - top;
    return below >= 0 && below < height ? aimed : heights.current!.rowAt(top);
  }

  /** Ask for lines on a side where the reader is near the end of the rows. */
  function wantMore({ scrollTop: top, scrollHeight: whole, clientHeight: height }: HTMLElement): void {
    if (top < AHEAD * height) onNear("earlier");
    if (whole - top - height < AHEAD * height) onNear("later");
  }

  function onScroll(): void {
    const element = box.current!;
    const { scrollTop: top, scrollHeight: whole, clientHeight: height } = element;
    const isEnd = whole - top - height < END_PIXELS;
    if (isEnd !== follows.current) setFollows(isEnd && isAtEnd);
    const place = anchorPlace(top, height);
    if (rows[place]) anchor.current = { key: rows[place].key, below: heights.current!.top(place) - top };
    see(element);
    wantMore(element);
    if (Math.abs(top - view.top) > height / 4 || height !== view.height) look();
  }

  return (
    <div class={`log ${isWrapped ? "" : "unwrapped"} ${props.class ?? ""}`} ref={box} tabIndex={0} role="log" aria-live="off" aria-label={label}
      onScroll={onScroll}
      onFocusIn={({ target }) => { hadFocus.current = target !== box.current; }}
      onFocusOut={({ relatedTarget }) => { if (relatedTarget) hadFocus.current = false; }}>
      {head}
      <div style={{ height: `${drawn.above}px` }} />
      <div ref={body}>{rows.slice(drawn.first, drawn.end).map(draw)}</div>
      <div style={{ height: `${drawn.below}px` }} />
    </div>
  );
}

/** Record the heights of the drawn rows, whose elements have their keys in `data-key`; returns whether one has changed. */
function measureRows(body: HTMLElement, heights: RowHeights): boolean {
  let isChanged = false;
  for (const row of body.children) {
    const { key } = (row as HTMLElement).dataset;
    // Fractions of pixels add up over thousands of rows.
    if (key !== undefined && heights.measure(key, row.getBoundingClientRect().height)) isChanged = true;
  }
  return isChanged;
}
