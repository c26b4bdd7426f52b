/** The part of a long log that the page holds: some thousand lines around the reader's place. */

import type { Schemas } from "../../api/client";
import { byteLength, joinLines, keyOf, type LogLine } from "./log_line";

/** The most lines that the page holds. Further lines replace those at the other end. */
export const LINES_MAX = 8_000;
const CHARACTERS_MAX = 16 * 1024 * 1024;
/** An offset after the end of every log. */
export const LOG_END = 2 ** 53 - 1;
const PAGE_LINES = 500;
// The server searches half a MiB for each page.
const PAGES_AT_ONCE = 20;
// The server divides longer lines into pieces, and finds only the first piece by its offset.
const PIECE_BYTES_MIN = 16 * 1024 - 64;

type Page = Schemas["Lines"];
export type Place = { after?: string; at?: number; before?: number; limit: number };
export type LoadPage = (place: Place, signal: AbortSignal) => Promise<Page>;
export type Side = "earlier" | "later";

/** What a view shows of a log. */
export interface WindowState {
  lines: readonly LogLine[];
  /** Changes with the lines. */
  version: number;
  /** Whether the log has lines before the first line of `lines`. */
  hasEarlier: boolean;
  /** Whether the log has lines after the last line of `lines`, as far as the page knows. */
  hasLater: boolean;
  /** Whether the log may still grow. */
  isOpen: boolean;
  /** Whether the search for lines on a side continues with the next call. */
  isSearching: boolean;
  /** The size of the log in bytes; null if the lines come from several logs. */
  size: number | null;
  /** A fact that the reader should know, or "". */
  notice: string;
  /** Changes when the view goes to another place of the log. */
  opening: number;
  /** The key of the first line at this place; null for the end of the log. */
  target: string | null;
}

/** A source of lines for the view: a trial's log, or the logs of an experiment's trials. */
export interface LineSource {
  /** Whether the view shows the end of the log, so that new lines should replace the oldest. */
  follows: boolean;
  /** Ask the next `read` for lines on a side. */
  want(side: Side): void;
  /** Read the wanted and the new lines. */
  read(signal: AbortSignal): Promise<WindowState>;
}

export class LogWindow implements LineSource {
  follows = true;
  private lines: LogLine[] = [];
  private version = 0;
  /** The offset before which earlier lines begin; null at the beginning of the log. */
  private previous: number | null = null;
  private following: Omit<Place, "limit"> = {};
  private hasLater = false;
  private isOpen = true;
  private size = 0;
  private isLoaded = false;
  private wanted = new Set<Side>();
  private opening = 0;
  private target: string | null = null;

  /** `start` is the offset of the line to begin with; null for the end of the log. */
  constructor(private readonly load: LoadPage, private start: number | null) {
    this.follows = start === null;
  }

  /** Forget the lines, and begin at another offset; null for the end of the log. */
  openAt(start: number | null): void {
    [this.start, this.isLoaded, this.follows] = [start, false, start === null];
    this.wanted.clear();
  }

  want(side: Side): void {
    if (side === "earlier" ? this.previous !== null : this.hasLater) this.wanted.add(side);
  }

  async read(signal: AbortSignal): Promise<WindowState> {
    if (!this.isLoaded) {
      await this.open(signal);
      if (this.wanted.size === 0) return this.state();
    }
    if (this.wanted.has("earlier")) await this.readEarlier(signal);
    const isAtEnd = !this.hasLater && this.isOpen && (this.follows || this.lines.length < LINES_MAX);
    if (this.wanted.has("later") || isAtEnd) await this.readLater(signal);
    return this.state();
  }

  private state(): WindowState {
    const { lines, version, hasLater, isOpen, size, opening, target } = this;
    const isSearching = this.wanted.size > 0;
    const searched = isSearching && this.previous !== null && size > 0 ? Math.round(100 * (1 - this.previous / size)) : null;
    const notice = searched === null ? "" : `${searched} % of the log searched`;
    return { lines, version, hasEarlier: this.previous !== null, hasLater, isOpen, isSearching, size, notice, opening, target };
  }

  private async open(signal: AbortSignal): Promise<void> {
    const { start } = this;
    const place = start === null ? { before: LOG_END } : { at: start };
    const page = await this.load({ ...place, limit: PAGE_LINES }, signal);
    // The reader may have gone elsewhere meanwhile.
    if (signal.aborted || start !== this.start) return;
    this.show(page.items);
    this.size = page.size;
    this.previous = start === null ? page.previous : (page.items[0]?.offset ?? start) || null;
    this.continueAt(page);
    this.hasLater = start !== null && !page.complete;
    this.isLoaded = true;
    this.opening += 1;
    this.target = start === null || page.items.length === 0 ? null : keyOf(page.items[0]!);
    this.wanted.clear();
    // Lines before the line that the reader came for, and lines at all if the search found none yet.
    if (this.previous !== null && (start !== null || page.items.length === 0)) this.wanted.add("earlier");
    if (start !== null && this.hasLater && page.items.length === 0) this.wanted.add("later");
  }

  private async readEarlier(signal: AbortSignal): Promise<void> {
    for (let page = 0; page < PAGES_AT_ONCE && this.previous !== null; page += 1) {
      const before = this.previous;
      const { items, previous, size } = await this.load({ before, limit: PAGE_LINES }, signal);
      if (signal.aborted || before !== this.previous) return;
      [this.previous, this.size] = [previous, size];
      if (items.length === 0) continue;
      this.show([...items, ...this.lines]);
      this.dropLatest();
      this.wanted.delete("earlier");
      return;
    }
    if (this.previous === null) this.wanted.delete("earlier");
  }

  private async readLater(signal: AbortSignal): Promise<void> {
    for (let page = 0; page < PAGES_AT_ONCE; page += 1) {
      const place = this.following;
      const read = await this.load({ ...place, limit: PAGE_LINES }, signal);
      if (signal.aborted || place !== this.following) return;
      const isEnd = read.complete || (place.after !== undefined && read.next_cursor === place.after);
      this.size = read.size;
      this.continueAt(read);
      this.hasLater = !isEnd;
      if (read.items.length > 0) {
        this.show(joinLines(this.lines, read.items));
        this.dropEarliest();
      }
      if (isEnd || (read.items.length > 0 && !this.follows)) {
        this.wanted.delete("later");
        return;
      }
    }
    // The log grows faster than the page reads: the view goes to the new end.
    if (this.follows && this.lines.length > 0) [this.start, this.isLoaded, this.hasLater] = [null, false, false];
  }

  private continueAt({ next_cursor: next, complete }: Page): void {
    if (next !== this.following.after || next === null) this.following = next === null ? {} : { after: next };
    this.isOpen = !complete;
  }

  private show(lines: LogLine[]): void {
    this.lines = lines;
    this.version += 1;
  }

  private dropEarliest(): void {
    const first = this.lines.length - keptCount(this.lines.toReversed());
    if (first <= 0) return;
    this.show(this.lines.slice(first));
    this.previous = this.lines[0]!.offset;
  }

  private dropLatest(): void {
    let end = keptCount(this.lines);
    // A piece of a long line cannot be found again by its offset.
    while (end < this.lines.length && isCut(this.lines[end - 1]!)) end += 1;
    const dropped = this.lines[end];
    if (dropped === undefined) return;
    this.show(this.lines.slice(0, end));
    this.following = { at: dropped.offset };
    [this.hasLater, this.isOpen, this.follows] = [true, true, false];
  }
}

/** The number of the first lines that fit into the limits of the page. */
export function keptCount(lines: readonly LogLine[]): number {
  let characters = 0;
  for (const [place, { text }] of lines.slice(0, LINES_MAX).entries()) {
    characters += text.length;
    if (characters > CHARACTERS_MAX) return Math.max(1, place);
  }
  return Math.min(lines.length, LINES_MAX);
}

function isCut({ text, unfinished }: LogLine): boolean {
  return unfinished === true || byteLength(text) >= PIECE_BYTES_MIN;
}
