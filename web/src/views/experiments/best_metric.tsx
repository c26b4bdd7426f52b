/** The best metric of an experiment, with its name and its direction. */

import { numberText } from "../../parts/format";

interface WithMetric {
  metric: string;
  smaller_is_better: boolean;
  best_metric?: number | null;
}

export function BestMetric({ of: { metric, best_metric: best, smaller_is_better: isSmaller } }: { of: WithMetric }) {
  if (best == null) return <>–</>;
  const direction = isSmaller ? "smaller is better" : "larger is better";
  return (
    <span title={`${metric}: ${direction}`}>
      {numberText(best)} <span class="quiet">{metric}<span aria-hidden="true"> {isSmaller ? "↓" : "↑"}</span><span class="hidden">, {direction}</span></span>
    </span>
  );
}
