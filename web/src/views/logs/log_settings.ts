/** The settings of a log view, which its address has. */

import { toMs } from "./log_times";

export const LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
/** The settings that narrow the lines. */
export const FILTERS = ["search", "rank", "level", "since", "until"];

/** The conditions of a log's lines, as the API names them. */
export type Wanted = {
  rank: string[];
  level: string | null;
  search: string | null;
  since_ms: number | null;
  until_ms: number | null;
};

export function wantedOf(query: URLSearchParams): Wanted {
  const rank = query.get("rank");
  return {
    rank: rank ? [rank] : [],
    level: query.get("level"),
    search: query.get("search"),
    since_ms: toMs(query.get("since")),
    until_ms: toMs(query.get("until")),
  };
}

export function isNarrowed({ rank, level, search, since_ms: since, until_ms: until }: Wanted): boolean {
  return rank.length > 0 || Boolean(level || search) || since !== null || until !== null;
}

/** The conditions of the errors among the lines. */
export function errorsOf(wanted: Wanted): Wanted {
  return { ...wanted, level: wanted.level === "CRITICAL" ? "CRITICAL" : "ERROR" };
}
