/** The cluster's word on something that is being written, a moment after it was last changed. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, type Schemas } from "../api/client";
import { onReturn } from "../live/connection";

export type Checked<T> =
  | { state: "checking" }
  | { state: "valid"; answer: T }
  | { state: "invalid"; error: Error; details: Schemas["DetailAnswer"][] };

const PAUSE_MS = 400;

/** What `check` answers about the text that `key` names; with another key it is asked again. */
export function useChecked<T>(key: string, check: (signal: AbortSignal) => Promise<T>): Checked<T> {
  const [checked, setChecked] = useState<Checked<T>>({ state: "checking" });
  const [returns, setReturns] = useState(0);
  useEffect(() => onReturn(() => setReturns((count) => count + 1)), []);
  useEffect(() => {
    const control = new AbortController();
    setChecked({ state: "checking" });
    const timer = setTimeout(async () => {
      try {
        const answer = await check(control.signal);
        if (!control.signal.aborted) setChecked({ state: "valid", answer });
      } catch (error) {
        if (control.signal.aborted) return;
        const details = error instanceof ApiError ? error.details : [];
        setChecked({ state: "invalid", error: error as Error, details });
      }
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [key, returns]);
  return checked;
}
