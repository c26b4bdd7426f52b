/** Months, as bills are for them: in UTC. */

export interface Month {
  /** As `2026-11`. */
  name: string;
  /** Its first and last days, as `2026-11-01`. */
  since: string;
  until: string;
}

/** The month of a moment, and so many before it, the latest first. */
export function latestMonths(nowMs: number, count: number): Month[] {
  const now = new Date(nowMs);
  return Array.from({ length: count }, (_, back) => {
    const first = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1);
    const last = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back + 1, 0);
    const [since, until] = [first, last].map((ms) => new Date(ms).toISOString().slice(0, 10)) as [string, string];
    return { name: since.slice(0, 7), since, until };
  });
}

/** The share of a budget that is spent, null without one; it can be above 1. */
export function budgetShare(spent: number, budget: number | null): number | null {
  return budget === null ? null : spent / budget;
}
