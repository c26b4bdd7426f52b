/** The forms of a view that has nothing to show yet, or nothing at all, or has failed. */

import type { ComponentChildren } from "preact";
import type { Live } from "../live/use_live";
import { durationText, momentText } from "./format";

export function Loading() {
  return <p class="quiet loading" role="status">Loading …</p>;
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

interface FailureProps {
  error: Error;
  retry?: () => void;
  /** What the button says that tries again. */
  action?: string;
}

export function Failure({ error, retry, action = "Try again" }: FailureProps) {
  return (
    <div class="failure" role="alert">
      <span>{error.message}</span>
      {retry && <button onClick={retry}>{action}</button>}
    </div>
  );
}

/** What a live value shows: itself, an error above the latest one, or that it is loading. */
export function Shown<T>(props: { live: Live<T>; children: (value: T) => ComponentChildren }) {
  const { value, error, refresh } = props.live;
  return (
    <>
      {error && <Failure error={error} retry={() => void refresh()} />}
      {value !== undefined ? props.children(value) : !error && <Loading />}
    </>
  );
}

const KINDS: Record<string, string> = {
  ACTIVE: "good", RUNNING: "good", ALIVE: "good", OPEN: "good", STATE_SCHEDULED: "good",
  COMPLETED: "done", PAUSED: "wait", STATE_QUEUED: "wait", DRAINING: "wait", STARTING: "wait",
  ERROR: "bad", DELETE_FAILED: "bad", DAMAGED: "bad", LOST: "bad", OVER_BUDGET: "bad",
};

export function Badge({ state }: { state: string }) {
  return <span class={`badge ${KINDS[state] ?? "other"}`}>{state.replace("STATE_", "").replaceAll("_", " ")}</span>;
}

export function Progress({ value }: { value: number | null }) {
  if (value === null) return <span class="quiet">–</span>;
  const percent = Math.round(value * 100);
  return (
    <span class="progress">
      <progress value={value} max={1} aria-label={`${percent} percent done`} /> {percent} %
    </span>
  );
}

/** From when until when, and how long that is. */
export function Period({ from, until }: { from: number; until: number | null | undefined }) {
  if (until === null || until === undefined) return <>since <Moment ms={from} /></>;
  return <><Moment ms={from} /> – <Moment ms={until} /> <span class="quiet">({durationText(until - from)})</span></>;
}

/** A moment in the reader's time zone; the whole of it, and UTC, when pointed at. */
export function Moment({ ms }: { ms: number | null | undefined }) {
  if (ms === null || ms === undefined) return <span class="quiet">–</span>;
  const time = new Date(ms);
  const iso = time.toISOString();
  return <time dateTime={iso} title={`${iso} (UTC)`}>{momentText(ms)}</time>;
}
