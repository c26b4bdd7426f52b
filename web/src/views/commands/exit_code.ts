/** How the program of a command ended. */

import type { Schemas } from "../../api/client";

/** The exit code; a dash while the program runs, and where it did not end by itself. */
export function exitCodeText(run: Schemas["SingleRun"] | null | undefined): string {
  return String(run?.exit_code ?? "–");
}
