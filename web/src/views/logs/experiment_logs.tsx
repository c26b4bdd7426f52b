/** The logs of all trials of an experiment, in the order of time. */

import { useEffect, useMemo, useRef } from "preact/hooks";
import type { ExperimentWhole } from "../../api/answers";
import { get } from "../../api/client";
import { motionOf as motionOfOwner } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { timeText } from "../../parts/format";
import { href, setQuery, useRoute } from "../../shell/router";
import { ErrorButtons, noErrorText } from "./error_tools";
import { LogBox } from "./log_box";
import { LogDownload } from "./log_download";
import { LogFrame } from "./log_frame";
import { keyOf, linePlace, placeText, type LogLine } from "./log_line";
import { errorsOf, isNarrowed, wantedOf, type Wanted } from "./log_settings";
import { motionOf, Places, textOf } from "./logs_part";
import { findMergedError } from "./merged_errors";
import { mergedText } from "./merged_text";
import { PlainField } from "./plain_field";
import type { LoadPeriod } from "./period_reader";
import { SliceWindow } from "./slice_window";
import { parseTrials, TRIALS_MAX } from "./trial_list";

// The clocks of machines may be behind the cluster's clock.
const CLOCKS_MS = 60_000;

export function ExperimentLogs({ experiment }: { experiment: ExperimentWhole }) {
  const { query } = useRoute();
  const text = query.get("trials") ?? "";
  const trials = parseTrials(text);
  const logs = useLogs(experiment, wantedOf(query), trials ?? []);
  return (
    <LogFrame
      hasRanks filters={["trials"]}
      fields={(
        <>
          <PlainField name="trials" title="Trials" placeholder="all: 1, 2" isWrong={trials === undefined} />
          {trials === undefined && (
            <span class="bad" role="alert">Trials: {text} is no list of at most {TRIALS_MAX} ids of trials; write for example 1, 2</span>
          )}
        </>
      )}
      beside={(
        <LogDownload key={logs.name} name={`experiment-${logs.id}`} command={`detcloud logs ${logs.id}`} isNarrowed={logs.isNarrowed}
          read={(signal) => mergedText(logs.load, logs.begin, logs.end ?? Date.now(), signal)} />
      )}
    >
      <MergedLog logs={logs} />
    </LogFrame>
  );
}

/** The logs of an experiment, narrowed. */
interface Logs {
  id: number;
  /** Text that differs for other logs and filters. */
  name: string;
  isNarrowed: boolean;
  begin: number;
  /** Null while the logs may grow. */
  end: number | null;
  load: LoadPeriod;
  loadErrors: LoadPeriod;
}

function useLogs(experiment: ExperimentWhole, wanted: Wanted, trials: readonly number[]): Logs {
  const id = experiment.id!;
  const isMoving = motionOfOwner(experiment) === "moving";
  const name = `${id} ${JSON.stringify(wanted)} ${trials.join()} ${isMoving}`;
  return useMemo(() => {
    const { since_ms: since, until_ms: until } = wanted;
    // An experiment that is paused may have ended runs, but no end.
    const end = until ?? (isMoving ? null : (experiment.ended_ms ?? Date.now()) + CLOCKS_MS);
    const loaderOf = ({ since_ms: _since, until_ms: _until, ...others }: Wanted): LoadPeriod => (period, signal) =>
      get("/api/v1/experiments/{experiment_id}/logs/lines", {
        path: { experiment_id: id },
        query: { ...others, ...period, ...(until !== null && { until_ms: Math.min(until, period.until_ms ?? until) }), trial: trials.map(String) },
        signal,
      });
    return {
      id, name, end, isNarrowed: isNarrowed(wanted) || trials.length > 0,
      begin: Math.max(0, since ?? 0, experiment.created_ms - CLOCKS_MS),
      load: loaderOf(wanted), loadErrors: loaderOf(errorsOf(wanted)),
    };
  }, [name]);
}

function MergedLog({ logs }: { logs: Logs }) {
  const { id, name, begin, end } = logs;
  const text = useRoute().query.get("line");
  const marked = linePlace(text);
  const source = useMemo(() => new SliceWindow(logs.load, begin, end, marked?.time_ms), [name]);
  const live = useLive(`lines of ${name}`, (signal) => source.read(signal), motionOf, "", textOf);
  const seen = useRef<readonly LogLine[]>([]);
  const state = live.value;
  const markedKey = marked && keyOf(marked);
  useEffect(() => {
    if (marked && state && !state.lines.some((line) => keyOf(line) === markedKey)) open(marked.time_ms);
  }, [markedKey]);

  function open(start: number | null): void {
    source.openAt(start);
    void live.refresh();
  }

  function leave(start: number | null): void {
    setQuery({ line: null });
    open(start);
  }

  async function go(isNext: boolean, signal: AbortSignal): Promise<string> {
    const [first, last] = seen.current;
    const limits = { begin, end: end ?? Date.now() };
    const from = marked ?? (isNext
      ? { time_ms: begin, ...first, offset: (first?.offset ?? 0) - 1 }
      : { time_ms: limits.end, ...last, offset: (last?.offset ?? 0) + 1 });
    const found = await findMergedError(logs.loadErrors, limits, from, isNext, signal);
    if ("reachedMs" in found) {
      leave(found.reachedMs);
      return `No error up to ${timeText(found.reachedMs)}; press again to continue.`;
    }
    if (found.line === null) return noErrorText(isNext);
    setQuery({ line: placeText(found.line) });
    return "";
  }

  return (
    <>
      <div class="tools log-tools">
        <ErrorButtons name={name} marked={markedKey} go={go} text={marked ? `error of trial ${marked.trial_id} at ${timeText(marked.time_ms)}` : ""} />
        {state && (state.hasEarlier || state.hasLater) && <Places size={null} place={0} openAt={(start) => leave(start === null ? null : begin)} />}
      </div>
      <LogBox label={`logs of experiment ${id}`} source={source} live={live} isNarrowed={logs.isNarrowed}
        hasRanks columns={[]} marked={markedKey}
        linkOf={({ trial_id: trial, offset }) => `${href("trials", trial!, "logs")}?line=${offset}`} onSee={(first, last) => { seen.current = [first, last]; }}>
        A link of a line leads to the line in the log of its trial.
      </LogBox>
    </>
  );
}
