/** The cluster's check of a configuration, as it is written. */

import { send, type Schemas } from "../../api/client";
import { useChecked, type Checked } from "../../parts/use_checked";

export type Check = Checked<Schemas["Experiment"]>;

export function useCheck(config: string, code: string): Check {
  const body = { config, model_code: code, validate_only: true };
  return useChecked(JSON.stringify([config, code]), (signal) => send("post", "/api/v1/experiments", { body, signal }));
}
