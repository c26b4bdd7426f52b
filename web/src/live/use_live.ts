/** A value that is asked for again as long as its view is looked at. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { onReturn } from "./connection";
import { FAST_MS, nextWaitMs, type Motion } from "./pace";

export interface Live<T> {
  value: T | undefined;
  error: Error | undefined;
  /** Ask again now; resolves when the answer is shown. */
  refresh: () => Promise<void>;
}

/**
 * Load a value now and again, one request at a time, and not while the page is hidden. `key` names
 * what is loaded: with another one the former value is dropped. `motionOf` tells from a value how it
 * can change; with another `mark` it is asked for at once. `textOf` gives what is another text for
 * each other value.
 */
export function useLive<T>(
  key: string,
  load: (signal: AbortSignal) => Promise<T>,
  motionOf: (value: T) => Motion = () => "moving",
  mark = "",
  textOf: (value: T) => string = JSON.stringify,
): Live<T> {
  const [state, setState] = useState<{ key: string; value?: T; error?: Error }>({ key });
  const loader = useRef({ load, motionOf, textOf });
  loader.current = { load, motionOf, textOf };
  const ask = useRef<(again?: boolean) => Promise<void>>(async () => undefined);

  useEffect(() => {
    const control = new AbortController();
    let timer = 0;
    let waitMs: number | null = FAST_MS;
    let failures = 0;
    let text: string | undefined;
    let underWay: Promise<void> | undefined;

    async function askOnce(): Promise<void> {
      clearTimeout(timer);
      try {
        const value = await loader.current.load(control.signal);
        if (control.signal.aborted) return;
        const fresh = loader.current.textOf(value);
        const changed = fresh !== text;
        const motion = loader.current.motionOf(value);
        if (changed || failures) setState({ key, value });
        failures = 0;
        text = fresh;
        waitMs = nextWaitMs({ lastMs: waitMs ?? FAST_MS, changed, motion, failures });
      } catch (error) {
        if (control.signal.aborted) return;
        failures += 1;
        setState((former) => ({ ...(former.key === key ? former : { key }), error: error as Error }));
        waitMs = nextWaitMs({ lastMs: FAST_MS, changed: false, motion: "moving", failures });
      }
      if (document.hidden || waitMs === null) return;
      timer = window.setTimeout(() => void ask.current(), waitMs);
    }

    ask.current = (again = false) => {
      // What is under way may have been asked before the change that is to be shown.
      if (again && underWay) return underWay.then(() => ask.current());
      underWay ??= askOnce().finally(() => (underWay = undefined));
      return underWay;
    };
    function onVisibility(): void {
      clearTimeout(timer);
      if (!document.hidden) void ask.current();
    }
    document.addEventListener("visibilitychange", onVisibility);
    const endReturn = onReturn(() => {
      // A hidden page asks when it is looked at again.
      if (!document.hidden && (failures > 0 || waitMs !== null)) void ask.current(true);
    });
    void ask.current();
    return () => {
      control.abort();
      clearTimeout(timer);
      endReturn();
      document.removeEventListener("visibilitychange", onVisibility);
    };
  }, [key]);

  const seenMark = useRef(mark);
  useEffect(() => {
    if (seenMark.current !== mark) void ask.current(true);
    seenMark.current = mark;
  }, [mark]);

  const refresh = useCallback(() => ask.current(true), []);
  const current = state.key === key ? state : { value: undefined, error: undefined };
  return { value: current.value, error: current.error, refresh };
}
