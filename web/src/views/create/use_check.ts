/** The cluster's check of a configuration, a moment after it was last changed. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, send, type Schemas } from "../../api/client";

export type Check =
  | { state: "checking" }
  | { state: "valid"; experiment: Schemas["Experiment"] }
  | { state: "invalid"; error: Error; details: Schemas["DetailAnswer"][] };

const PAUSE_MS = 400;

export function useCheck(config: string, code: string): Check {
  const [check, setCheck] = useState<Check>({ state: "checking" });
  useEffect(() => {
    const control = new AbortController();
    setCheck({ state: "checking" });
    const timer = setTimeout(async () => {
      try {
        const body = { config, model_code: code, validate_only: true };
        const experiment = await send("post", "/api/v1/experiments", { body, signal: control.signal });
        if (!control.signal.aborted) setCheck({ state: "valid", experiment });
      } catch (error) {
        if (control.signal.aborted) return;
        const details = error instanceof ApiError ? error.details : [];
        setCheck({ state: "invalid", error: error as Error, details });
      }
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [config, code]);
  return check;
}
