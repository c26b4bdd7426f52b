/** Moves of rows by dragging a handle, or by keys on the handle. The order changes when a row is dropped. */

import { useEffect, useRef, useState } from "preact/hooks";

/** A row that is about to be moved. */
export interface Held {
  key: string;
  /** Its index after the move. */
  place: number;
}

interface Options {
  /** The keys of the rows in order. */
  keys: readonly string[];
  /** The element with a row of `data-key` for each key. */
  region: { current: HTMLElement | null };
  /** Called with the row's index and its index after the move, if these differ. */
  onDrop: (from: number, place: number) => void;
  /** Whether the row at index `from` may be dropped at `place`. */
  isAllowed: (from: number, place: number) => boolean;
}

const MARKS = ["drop-above", "drop-below", "drop-refused"];
// Near an edge of the list, dragging scrolls.
const EDGE = 40;
const SCROLL = 14;

export function useReorder({ keys, region, onDrop, isAllowed }: Options) {
  const [held, setHeld] = useState<Held | null>(null);
  // Two events may come before the next rendering.
  const latest = useRef<Held | null>(null);
  const isDragged = useRef(false);
  useEffect(() => {
    const row = markPlace(region.current, keys, held, isAllowed);
    if (!isDragged.current) row?.scrollIntoView({ block: "nearest" });
  }, [held]);

  function end(isDropped: boolean): void {
    const dropped = latest.current;
    latest.current = null;
    isDragged.current = false;
    setHeld(null);
    const from = dropped && isDropped ? keys.indexOf(dropped.key) : -1;
    if (dropped && from !== -1 && from !== dropped.place) onDrop(from, dropped.place);
  }

  function hold(key: string, place: number): void {
    if (latest.current?.key === key && latest.current.place === place) return;
    latest.current = { key, place };
    setHeld(latest.current);
  }

  function onKeyDown(key: string, event: KeyboardEvent): void {
    const held = latest.current;
    const isDrop = event.key === " " || event.key === "Enter";
    if (held === null && !isDrop) return;
    if (held === null) hold(key, keys.indexOf(key));
    else if (isDrop) end(true);
    else if (event.key === "Escape") end(false);
    else if (event.key === "ArrowUp") hold(key, Math.max(0, held.place - 1));
    else if (event.key === "ArrowDown") hold(key, Math.min(keys.length - 1, held.place + 1));
    else if (event.key === "Home") hold(key, 0);
    else if (event.key === "End") hold(key, keys.length - 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The properties of the handle of a row. */
  function handle(key: string) {
    return {
      "aria-pressed": held?.key === key,
      onKeyDown: (event: KeyboardEvent) => onKeyDown(key, event),
      onBlur: () => latest.current && end(false),
      onPointerDown: (event: PointerEvent) => {
        if (event.button !== 0) return;
        (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId);
        isDragged.current = true;
        hold(key, keys.indexOf(key));
      },
      onPointerMove: (event: PointerEvent) => {
        if (!isDragged.current || !region.current) return;
        scrollAtEdge(region.current, event.clientY);
        hold(key, placeAt(region.current, keys, key, event.clientY));
      },
      onPointerUp: () => isDragged.current && end(true),
      onPointerCancel: () => isDragged.current && end(false),
    };
  }
  return { held, handle };
}

/** The index at which the row `moved` would be dropped at a height of the window. */
function placeAt(region: HTMLElement, keys: readonly string[], moved: string, y: number): number {
  const rest = keys.filter((key) => key !== moved);
  let place = 0;
  for (const row of region.querySelectorAll<HTMLElement>("[data-key]")) {
    const index = rest.indexOf(row.dataset["key"]!);
    const { top, height } = row.getBoundingClientRect();
    if (index === -1) continue;
    if (y < top + height / 2) return index;
    place = index + 1;
  }
  return place;
}

/** Mark the row above or below which the held row would be dropped, and no other row. Returns the marked row. */
function markPlace(region: HTMLElement | null, keys: readonly string[], held: Held | null, isAllowed: Options["isAllowed"]): Element | null {
  region?.querySelectorAll("[data-key]").forEach((row) => row.classList.remove(...MARKS));
  if (!region || !held) return null;
  const rest = keys.filter((key) => key !== held.key);
  const from = keys.indexOf(held.key);
  if (from === held.place) return null;
  const [key, mark] = held.place < rest.length ? [rest[held.place]!, "drop-above"] : [rest[rest.length - 1]!, "drop-below"];
  const row = region.querySelector(`[data-key="${CSS.escape(key)}"]`);
  row?.classList.add(mark, ...(isAllowed(from, held.place) ? [] : ["drop-refused"]));
  return row;
}

function scrollAtEdge(region: HTMLElement, y: number): void {
  const box = region.querySelector(".scroll") ?? document.documentElement;
  const { top, bottom } = box === document.documentElement ? { top: 0, bottom: innerHeight } : box.getBoundingClientRect();
  const edges = [Math.max(0, top) + EDGE, Math.min(innerHeight, bottom) - EDGE] as const;
  if (y < edges[0]) box.scrollBy(0, -SCROLL);
  if (y > edges[1]) box.scrollBy(0, SCROLL);
}
