/** What a chart shows, for a report that shows the same. */

import { createContext } from "preact";

export interface ChartSource {
  /** The kind of the chart's block in a report. */
  kind: "curves" | "history" | "pareto" | "scatter" | "parallel" | "contour";
  experiments: number[];
  /** Settings that the address does not have. */
  settings?: Record<string, string>;
}

/** Null for charts that reports do not have. */
export const ChartSourceContext = createContext<ChartSource | null>(null);
