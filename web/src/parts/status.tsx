/** The forms of a view that has nothing to show yet, or nothing at all, or has failed. */

import type { ComponentChildren } from "preact";
import { isOutage } from "../live/connection";
import type { Live } from "../live/use_live";
import { href } from "../shell/router";
import { countText, durationText, momentText } from "./format";

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

/**
 * What a live value shows: itself, an error above the latest one, or that it is loading. During an
 * outage the bar of the page has the error, and the value loads when the cluster answers again.
 */
export function Shown<T>(props: { live: Live<T>; children: (value: T) => ComponentChildren }) {
  const { value, error, refresh } = props.live;
  const shown = isOutage(error) ? undefined : error;
  return (
    <>
      {shown && <Failure error={shown} retry={() => void refresh()} />}
      {value !== undefined ? props.children(value) : !shown && <Loading />}
    </>
  );
}

const KINDS: Record<string, string> = {
  running: "good", active: "good", alive: "good", open: "good",
  finished: "done", completed: "done", "stopped by the search": "other",
  starting: "wait", queued: "wait", waiting: "wait", "waiting at a rung": "wait", "waiting for the search": "wait",
  "waiting to restart": "wait", paused: "wait", pausing: "wait", preempted: "wait", draining: "wait",
  failed: "bad", "deletion failed": "bad", "delete failed": "bad", damaged: "bad", lost: "bad", "over budget": "bad",
};

/** A state in words: the condition of an experiment or trial, or the state of another object, such as `OVER_BUDGET`. */
export function Badge({ state }: { state: string }) {
  const words = state.replaceAll("_", " ").toLowerCase();
  return <span class={`badge ${KINDS[words] ?? "other"}`}>{words}</span>;
}

interface WithTrials {
  id?: number | null;
  condition: string;
  message: string;
  trials: { errored: number };
}

/** The state of an experiment in a list. A link with the number of failed trials leads to the ends of their logs. */
export function ExperimentState({ experiment }: { experiment: WithTrials }) {
  const { id, condition, message, trials: { errored: failed } } = experiment;
  return (
    <>
      <span title={message.slice(0, 1000)}><Badge state={condition} /></span>
      {failed > 0 && <>{" "}<FailuresLink id={id!}>{countText(failed, "trial")} failed</FailuresLink></>}
    </>
  );
}

/** A link to the part Failures of an experiment. */
export function FailuresLink({ id, children }: { id: number; children: ComponentChildren }) {
  return <a class="bad" href={href("experiments", id, "failures")}>{children}</a>;
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

/** A moment in the reader's time zone, in lists without seconds; the whole of it, and UTC, when pointed at. */
export function Moment({ ms, isBrief = false }: { ms: number | null | undefined; isBrief?: boolean }) {
  if (ms === null || ms === undefined) return <span class="quiet">–</span>;
  const time = new Date(ms);
  const iso = time.toISOString();
  return <time dateTime={iso} title={`${iso} (UTC)`}>{momentText(ms, isBrief)}</time>;
}
