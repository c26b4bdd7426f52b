/** The lines of several logs in the order of time, read period by period. */

import { byTime, keyOf, type LogLine } from "./log_line";
import { keptCount, LINES_MAX, type LineSource, type Side, type WindowState } from "./log_window";
import { PeriodReader, SHORTEST_MS, type LoadPeriod, type Period } from "./period_reader";

/** Lines may reach the cluster so much later than lines of other trials: agents send them up to 36 s late. */
export const LATE_MS = 120_000;
// Shorter where many lines arrive, which would be read again and again.
const LATE_MS_MIN = SHORTEST_MS;
const PERIODS_AT_ONCE = 12;
// An opening at a line begins a little earlier: the line may end a traceback.
const BEFORE_MS = 1_000;
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
  private late = LATE_MS;
  private notice = "";
  private wanted = new Set<Side>();
  private opening = 0;
  /** The key of the first line at `start`. */
  private target: string | null = null;
  /** Whether the next `read` begins at another time. */
  private hasNewStart = false;
  private readonly reader: PeriodReader;

  /**
   * The lines begin at `begin` and, unless they still grow, end about `end`, in epoch milliseconds.
   * `start` is the time of the line to begin with; null for the end of the lines.
   */
  constructor(
    load: LoadPeriod,
    private readonly begin: number,
    private readonly end: number | null,
    private start: number | null = null,
    private readonly nowMs: () => number = Date.now,
  ) {
    this.reader = new PeriodReader(load, LINES_MAX);
    this.follows = start === null;
  }

  /** Forget the lines with the next `read`, and begin at another time; null for the end of the lines. */
  openAt(start: number | null): void {
    [this.start, this.hasNewStart, this.follows] = [start, true, start === null];
  }

  want(side: Side): void {
    if (side === "earlier" ? this.hasEarlier() : this.until !== null) this.wanted.add(side);
  }

  async read(signal: AbortSignal): Promise<WindowState> {
    this.notice = "";
    if (this.hasNewStart) this.forget();
    if (this.from === undefined) await this.readFirst(signal);
    else if (!this.wanted.has("earlier")) await this.readLater(signal);
    // A view without lines looks further back, and from the beginning further on.
    if (this.lines.length === 0) this.want(this.hasEarlier() ? "earlier" : "later");
    if (this.wanted.has("earlier")) await this.readEarlier(signal);
    return this.state();
  }

  private state(): WindowState {
    const { lines, version, notice } = this;
    return {
      lines, version, hasEarlier: this.hasEarlier(), hasLater: this.until !== null, isOpen: this.end === null,
      isSearching: this.wanted.size > 0, size: null, notice, opening: this.opening, target: this.target,
    };
  }

  private forget(): void {
    [this.from, this.until, this.hasNewStart, this.target] = [undefined, null, false, null];
    this.wanted.clear();
    this.keys.clear();
    this.show([]);
    this.opening += 1;
  }

  private hasEarlier(): boolean {
    return this.from === undefined || this.from > this.begin;
  }

  private async readFirst(signal: AbortSignal): Promise<void> {
    for (let period = 0; period < PERIODS_AT_ONCE && this.from === undefined; period += 1) {
      const { start, reader: { length } } = this;
      const end = this.end ?? this.nowMs();
      const from = Math.max(this.begin, start === null ? end - length : start - BEFORE_MS);
      const until = start === null || start + length > end ? null : start + length;
      const lines = await this.readPeriod({ since_ms: from, ...(until !== null && { until_ms: until }) }, signal);
      if (signal.aborted) return;
      if (lines === undefined) continue;
      [this.from, this.until] = [from, until];
      this.add(lines);
      const first = this.lines.find(({ time_ms: time }) => start !== null && (time ?? 0) >= start);
      this.target = first ? keyOf(first) : null;
    }
  }

  private async readPeriod(period: Pick<Period, "since_ms" | "until_ms">, signal: AbortSignal): Promise<LogLine[] | undefined> {
    const lines = await this.reader.read(period, signal);
    if (this.reader.isCut) this.notice = TOO_MANY;
    return lines;
  }

  private async readEarlier(signal: AbortSignal): Promise<void> {
    for (let period = 0; period < PERIODS_AT_ONCE && this.hasEarlier() && this.from !== undefined; period += 1) {
      const since = Math.max(this.begin, this.from - this.reader.length);
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
      const until = since + this.reader.length;
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
    const length = this.reader.length;
    this.reader.length = this.late;
    const lines = await this.readPeriod({ since_ms: Math.max(this.from!, newest - this.late) }, signal);
    this.late = Math.max(LATE_MS_MIN, Math.min(LATE_MS, this.reader.length));
    this.reader.length = length;
    if (signal.aborted || lines === undefined) return;
    this.add(lines);
    this.dropEarliest();
  }

  /** Add lines that are not here yet, in the order of time; returns their number. */
  private add(lines: readonly LogLine[]): number {
    const fresh = lines.filter((line) => !this.keys.has(keyOf(line)));
    if (fresh.length === 0) return 0;
    for (const line of fresh) this.keys.add(keyOf(line));
    this.show([...this.lines, ...fresh].sort(byTime));
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
