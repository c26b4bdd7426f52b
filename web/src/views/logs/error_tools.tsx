/** The number of errors of a log, and the buttons and keys that go to the next and the previous error. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useLive } from "../../live/use_live";
import { countText, messageOf } from "../../parts/format";
import { setQuery } from "../../shell/router";
import { ErrorIndex, errorBeside, errorsUntil, findError, type ErrorCount } from "./error_index";
import type { LoadPage } from "./log_window";

export const NEXT_KEY = ".";
export const PREVIOUS_KEY = ",";

interface Props {
  /** Text that differs for logs and filters. */
  name: string;
  /** Loads the lines of the level ERROR and above. */
  load: LoadPage;
  /** Changes when the log has grown. */
  mark: string;
  /** The offset of the line that the address names; null for none. */
  marked: number | null;
  /** The offsets of the first and the last visible line. */
  seen: () => readonly [number, number];
}

export function ErrorTools({ name, load, mark, marked, seen }: Props) {
  const index = useMemo(() => new ErrorIndex(load), [name]);
  // Asked for again when the log has grown.
  const live = useLive(`errors ${name}`, (signal) => index.read(signal), () => "still", mark,
    ({ offsets, isComplete, isOpen }) => `${offsets.length} ${isComplete} ${isOpen}`);
  const [told, setTold] = useState("");
  const search = useRef<AbortController | null>(null);
  useEffect(() => () => search.current?.abort(), [name]);
  useEffect(() => setTold(""), [name, marked]);
  const count = live.value;

  async function go(isNext: boolean): Promise<void> {
    search.current?.abort();
    const control = search.current = new AbortController();
    const [first, last] = seen();
    const from = marked ?? (isNext ? first - 1 : last + 1);
    const known = knownError(count, from, isNext);
    if (known !== undefined) return tell(known, isNext);
    setTold("Searching …");
    try {
      const found = await findError(load, from, isNext, control.signal);
      if (!control.signal.aborted) tell(found, isNext);
    } catch (error) {
      if (!control.signal.aborted) setTold(messageOf(error));
    }
  }

  function tell(offset: number | null | undefined, isNext: boolean): void {
    if (offset === undefined) setTold("No error in the next 100 MiB; press again after another jump.");
    else if (offset === null) setTold(isNext ? "No later error." : "No earlier error.");
    else {
      setTold("");
      setQuery({ line: String(offset) });
    }
  }

  useErrorKeys((isNext) => void go(isNext));
  return (
    <div class="tools" role="group" aria-label="errors">
      <button type="button" onClick={() => void go(false)} aria-keyshortcuts={PREVIOUS_KEY}>Previous error <kbd>{PREVIOUS_KEY}</kbd></button>
      <button type="button" onClick={() => void go(true)} aria-keyshortcuts={NEXT_KEY}>Next error <kbd>{NEXT_KEY}</kbd></button>
      <span class="quiet" role="status">{told || (count ? errorText(count, marked) : "")}</span>
      {count && !count.isComplete && <button type="button" onClick={() => void live.refresh()}>Count on</button>}
    </div>
  );
}

/** The error beside an offset as far as the counted errors tell: null if there is none, undefined if another may be nearer. */
export function knownError(count: ErrorCount | undefined, from: number, isNext: boolean): number | null | undefined {
  if (count === undefined) return undefined;
  const { offsets, isComplete } = count;
  const place = errorBeside(offsets, from, isNext);
  if (isNext) return place >= 0 ? offsets[place] : isComplete ? null : undefined;
  const isCounted = isComplete || (offsets.at(-1) ?? -1) >= from;
  return isCounted ? (place >= 0 ? offsets[place] : null) : undefined;
}

/** The number of errors, and which of them is marked. */
export function errorText({ offsets, isComplete }: ErrorCount, marked: number | null): string {
  const number = marked === null ? 0 : errorsUntil(offsets, marked);
  const whole = `${countText(offsets.length, "error")}${isComplete ? "" : " so far"}`;
  return number > 0 && offsets[number - 1] === marked ? `error ${number} of ${whole.replace(/ error(s?)/, "")}` : whole;
}

function useErrorKeys(go: (isNext: boolean) => void): void {
  const latest = useRef(go);
  latest.current = go;
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || (event.key !== NEXT_KEY && event.key !== PREVIOUS_KEY)) return;
      const target = event.target as HTMLElement;
      if (target.closest("input, select, textarea, dialog, [contenteditable]")) return;
      event.preventDefault();
      latest.current(event.key === NEXT_KEY);
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
}
