/** Calendar months in UTC, for bills. */

const MONTH = new Intl.DateTimeFormat("en", { month: "long", year: "numeric", timeZone: "UTC" });

export interface Month {
  /** As `2026-11`. */
  name: string;
  /** As `November 2026`. */
  title: string;
  /** The first day, as `2026-11-01`. */
  since: string;
  /** The last day. */
  until: string;
}

/** Return `count` months, the latest first. The first one contains the time `nowMs`. */
export function latestMonths(nowMs: number, count: number): Month[] {
  const now = new Date(nowMs);
  return Array.from({ length: count }, (_, back) => {
    const first = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1);
    const last = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back + 1, 0);
    const [since, until] = [first, last].map((ms) => new Date(ms).toISOString().slice(0, 10)) as [string, string];
    return { name: since.slice(0, 7), title: MONTH.format(first), since, until };
  });
}

/** Return the spent share of a budget, above 1 if the budget is exceeded. Null without a budget. */
export function budgetShare(spent: number, budget: number | null): number | null {
  return budget === null ? null : spent / budget;
}
