/** The lines of several logs in the order of time, read period by period. */

import type { Schemas } from "../../api/client";
import { keyOf, type LogLine } from "./log_line";
import { keptCount, LINES_MAX, type LineSource, type Side, type WindowState } from "./log_window";

type Page = Schemas["Page_TrialLine_"];
export type Period = { since_ms: number; until_ms?: number; cursor?: string; limit: number };
export type LoadPeriod = (period: Period, signal: AbortSignal) => Promise<Page>;

const PAGE_LINES = 500;
// A period of a request's many pages is read to its end before its lines are shown.
const PAGES_MAX = 60;
const FIRST_MS = 60_000;
const LONGEST_MS = 7 * 24 * 3_600_000;
const SHORTEST_MS = 1_000;
/** Lines may reach the cluster so much later than lines of other trials: agents send them up to 36 s later. */
export const LATE_MS = 120_000;
// Shorter where many lines arrive, which would be read again and again.
const LATE_MS_MIN = SHORTEST_MS;
// A period with so few lines is followed by a longer one.
const FEW_LINES = 200;
// A period with more lines is read again as shorter periods, because its trials come one after another.
const MANY_LINES = 2_000;
const PERIODS_AT_ONCE = 12;
const TOO_MANY = "more lines than the page can read: narrow them to trials, a level or a text";

export class SliceWindow implements LineSource {
  follows = true;
  private lines: LogLine[] = [];
  private keys = new Set<string>();
  private version = 0;
  /** The lines from this time on are here; undefined before the first period was read. */
  private from: number | undefined;
  /** The lines until this time are here; null if the lines are complete up to the present. */
  private until: number | null = null;
  private length = FIRST_MS;
  private late = LATE_MS;
  private notice = "";
  private wanted = new Set<Side>();

  /** The lines begin at `begin` and, unless they still grow, end about `end`, in epoch milliseconds. */
  constructor(
    private readonly load: LoadPeriod,
    private readonly begin: number,
    private readonly end: number | null,
    private readonly nowMs: () => number = Date.now,
  ) {}

  want(side: Side): void {
    if (side === "earlier" ? this.hasEarlier() : this.until !== null) this.wanted.add(side);
  }

  async read(signal: AbortSignal): Promise<WindowState> {
    this.notice = "";
    if (this.from === undefined) await this.readFirst(signal);
    else if (!this.wanted.has("earlier")) await this.readLater(signal);
    // A view without lines looks further back.
    if (this.lines.length === 0 && this.hasEarlier()) this.wanted.add("earlier");
    if (this.wanted.has("earlier")) await this.readEarlier(signal);
    return this.state();
  }

  private state(): WindowState {
    const { lines, version, notice } = this;
    return {
      lines, version, hasEarlier: this.hasEarlier(), hasLater: this.until !== null, isOpen: this.end === null,
      isSearching: this.wanted.size > 0, size: null, notice, opening: 0, target: null,
    };
  }

  private hasEarlier(): boolean {
    return this.from === undefined || this.from > this.begin;
  }

  private async readFirst(signal: AbortSignal): Promise<void> {
    for (let period = 0; period < PERIODS_AT_ONCE && this.from === undefined; period += 1) {
      const from = Math.max(this.begin, (this.end ?? this.nowMs()) - this.length);
      const lines = await this.readPeriod({ since_ms: from }, signal);
      if (signal.aborted) return;
      if (lines === undefined) continue;
      this.from = from;
      this.add(lines);
    }
  }

  private async readEarlier(signal: AbortSignal): Promise<void> {
    for (let period = 0; period < PERIODS_AT_ONCE && this.hasEarlier() && this.from !== undefined; period += 1) {
      const since = Math.max(this.begin, this.from - this.length);
      const lines = await this.readPeriod({ since_ms: since, until_ms: this.from }, signal);
      if (signal.aborted) return;
      if (lines === undefined) continue;
      this.from = since;
      if (this.add(lines) === 0) continue;
      this.dropLatest();
      this.wanted.delete("earlier");
      return;
    }
    if (!this.hasEarlier()) this.wanted.delete("earlier");
  }

  private async readLater(signal: AbortSignal): Promise<void> {
    if (this.until !== null) await this.readFollowing(this.until, signal);
    else if (this.end === null && (this.follows || this.lines.length < LINES_MAX)) await this.readNew(signal);
  }

  /** Read the wanted period after the lines that are here. */
  private async readFollowing(since: number, signal: AbortSignal): Promise<void> {
    for (let period = 0; period < PERIODS_AT_ONCE && this.wanted.has("later"); period += 1) {
      const until = since + this.length;
      const lines = await this.readPeriod({ since_ms: since, until_ms: until }, signal);
      if (signal.aborted) return;
      if (lines === undefined) continue;
      this.until = until > (this.end ?? this.nowMs()) ? null : until;
      if (this.add(lines) > 0 || this.until === null) this.wanted.delete("later");
      this.dropEarliest();
      since = until;
    }
  }

  /** Read new lines, and lines that have arrived late. */
  private async readNew(signal: AbortSignal): Promise<void> {
    const newest = this.lines.at(-1)?.time_ms ?? this.from!;
    const length = this.length;
    this.length = this.late;
    const lines = await this.readPeriod({ since_ms: Math.max(this.from!, newest - this.late) }, signal);
    this.late = Math.max(LATE_MS_MIN, Math.min(LATE_MS, this.length));
    this.length = length;
    if (signal.aborted || lines === undefined) return;
    this.add(lines);
    this.dropEarliest();
  }

  /**
   * The lines of a period of the present length; undefined if the period has more lines than the page
   * can read. The next period is shorter then, and longer after a period with few lines.
   */
  private async readPeriod(period: Omit<Period, "limit" | "cursor">, signal: AbortSignal): Promise<LogLine[] | undefined> {
    const lines: LogLine[] = [];
    let cursor: string | undefined;
    const isShortest = this.length <= SHORTEST_MS;
    const most = isShortest ? LINES_MAX : MANY_LINES;
    for (let page = 0; page < PAGES_MAX && lines.length <= most; page += 1) {
      const { items, next_cursor: next } = await this.load({
        ...period, since_ms: Math.max(0, Math.floor(period.since_ms)), ...(cursor && { cursor }), limit: PAGE_LINES,
      }, signal);
      if (signal.aborted) return lines;
      lines.push(...items);
      if (!next) {
        if (lines.length < FEW_LINES) this.length = Math.min(LONGEST_MS, 4 * this.length);
        return lines;
      }
      cursor = next;
    }
    this.length = Math.max(SHORTEST_MS, Math.floor(this.length / 4));
    if (!isShortest) return undefined;
    this.notice = TOO_MANY;
    return lines.slice(0, LINES_MAX);
  }

  /** Add lines that are not here yet, in the order of time; returns their number. */
  private add(lines: readonly LogLine[]): number {
    const fresh = lines.filter((line) => !this.keys.has(keyOf(line)));
    if (fresh.length === 0) return 0;
    for (const line of fresh) this.keys.add(keyOf(line));
    this.show([...this.lines, ...fresh].sort(compareLines));
    return fresh.length;
  }

  private show(lines: LogLine[]): void {
    this.lines = lines;
    this.version += 1;
  }

  private dropEarliest(): void {
    const first = this.lines.length - keptCount(this.lines.toReversed());
    if (first <= 0) return;
    this.keep(first, this.lines.length);
    this.from = this.lines[0]!.time_ms ?? this.from;
  }

  private dropLatest(): void {
    const end = keptCount(this.lines);
    if (end >= this.lines.length) return;
    this.keep(0, end);
    this.until = this.lines.at(-1)!.time_ms;
    this.follows = false;
  }

  private keep(first: number, end: number): void {
    for (const line of [...this.lines.slice(0, first), ...this.lines.slice(end)]) this.keys.delete(keyOf(line));
    this.show(this.lines.slice(first, end));
  }
}

/** The order of lines: by time, then by trial, then by the place in the trial's log. */
function compareLines(a: LogLine, b: LogLine): number {
  return (a.time_ms ?? 0) - (b.time_ms ?? 0) || (a.trial_id ?? 0) - (b.trial_id ?? 0) || a.offset - b.offset;
}
