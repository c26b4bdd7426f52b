/** The replacements of a pool: the sums by cause and phase, and the latest as bars. */

import { get } from "../../api/client";
import { useLive } from "../../live/use_live";
import { ReplacementSums } from "../../parts/replacements";
import { Shown } from "../../parts/status";

const DAYS = 30;

export function PoolReplacements({ name, mark }: { name: string; mark: string }) {
  const live = useLive(
    `replacements ${name}`,
    (signal) =>
      get("/api/v1/resource-pools/{resource_pool}/replacements", {
        path: { resource_pool: name },
        query: { days: DAYS },
        signal,
      }),
    () => "still",
    mark,
  );
  return (
    <Shown live={live}>
      {({ causes, latest, is_cut: isCut }) => latest.length === 0 ? null : (
        <details>
          <summary>Replacements in the last {DAYS} days</summary>
          <ReplacementSums causes={causes} latest={latest} isCut={isCut} />
        </details>
      )}
    </Shown>
  );
}
