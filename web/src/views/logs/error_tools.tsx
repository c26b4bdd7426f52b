/** The buttons and keys that go to the next and the previous error of a log, and the number of errors. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useLive } from "../../live/use_live";
import { countText, messageOf } from "../../parts/format";
import { useKeyDown } from "../../parts/use_key_down";
import { setQuery } from "../../shell/router";
import { ErrorIndex, errorBeside, errorsUntil, findError, type ErrorCount } from "./error_index";
import type { LoadPage } from "./log_window";

export const NEXT_KEY = ".";
export const PREVIOUS_KEY = ",";

interface ButtonsProps {
  /** Text that differs for logs and filters. */
  name: string;
  /** The place of the line that the address names; null for none. */
  marked: string | number | null;
  /** Goes to an error; returns what the reader should know, or "" if the error is marked. */
  go: (isNext: boolean, signal: AbortSignal) => Promise<string>;
  /** The state of the log's errors, while no search tells another. */
  text: string;
  children?: ComponentChildren;
}

/** The buttons and keys of the next and the previous error. */
export function ErrorButtons({ name, marked, go, text, children }: ButtonsProps) {
  const [told, setTold] = useState("");
  const search = useRef<AbortController | null>(null);
  useEffect(() => () => search.current?.abort(), [name]);
  useEffect(() => setTold(""), [name, marked]);

  async function start(isNext: boolean): Promise<void> {
    search.current?.abort();
    const { signal } = search.current = new AbortController();
    setTold("Searching …");
    try {
      const answer = await go(isNext, signal);
      if (!signal.aborted) setTold(answer);
    } catch (error) {
      if (!signal.aborted) setTold(messageOf(error));
    }
  }

  useErrorKeys((isNext) => void start(isNext));
  return (
    <div class="tools" role="group" aria-label="errors">
      <button type="button" onClick={() => void start(false)} aria-keyshortcuts={PREVIOUS_KEY}>Previous error <kbd>{PREVIOUS_KEY}</kbd></button>
      <button type="button" onClick={() => void start(true)} aria-keyshortcuts={NEXT_KEY}>Next error <kbd>{NEXT_KEY}</kbd></button>
      <span class="quiet" role="status">{told || text}</span>
      {children}
    </div>
  );
}

/** What the reader is told if no error is left on a side. */
export function noErrorText(isNext: boolean): string {
  return isNext ? "No later error." : "No earlier error.";
}

interface Props {
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

/** The buttons of a trial's log, with the number of the log's errors. */
export function ErrorTools({ name, load, mark, marked, seen }: Props) {
  const index = useMemo(() => new ErrorIndex(load), [name]);
  // Asked for again when the log has grown.
  const live = useLive(`errors ${name}`, (signal) => index.read(signal), () => "still", mark,
    ({ offsets, isComplete, isOpen }) => `${offsets.length} ${isComplete} ${isOpen}`);
  const count = live.value;

  async function go(isNext: boolean, signal: AbortSignal): Promise<string> {
    const [first, last] = seen();
    const from = marked ?? (isNext ? first - 1 : last + 1);
    const known = knownError(count, from, isNext);
    const offset = known === undefined ? await findError(load, from, isNext, signal) : known;
    if (offset === undefined) return "No error in the next 100 MiB; press again after another jump.";
    if (offset === null) return noErrorText(isNext);
    if (!signal.aborted) setQuery({ line: String(offset) });
    return "";
  }

  return (
    <ErrorButtons name={name} marked={marked} go={go} text={count ? errorText(count, marked) : ""}>
      {count && !count.isComplete && <button type="button" onClick={() => void live.refresh()}>Count on</button>}
    </ErrorButtons>
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
  useKeyDown((event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || (event.key !== NEXT_KEY && event.key !== PREVIOUS_KEY)) return;
    const target = event.target as HTMLElement;
    if (target.closest("input, select, textarea, dialog, [contenteditable]")) return;
    event.preventDefault();
    go(event.key === NEXT_KEY);
  });
}
