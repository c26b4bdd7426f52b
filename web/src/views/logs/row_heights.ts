/** The places of rows of different heights in a long column, of which a few rows are drawn. */

/** Rows that are drawn above and below the visible rows. */
const MARGIN = 20;

/** The drawn rows from `first` on, without `end`, and the pixels in place of the other rows. */
export interface DrawnRows {
  first: number;
  end: number;
  above: number;
  below: number;
}

/** The heights of rows by key. Rows that were never drawn have the mean height of the others. */
export class RowHeights {
  private heights = new Map<string, number>();
  private sum = 0;
  private places: number[] = [0];
  private isStale = true;

  constructor(private keys: readonly string[] = [], private readonly guess = 19) {}

  setKeys(keys: readonly string[]): void {
    if (keys === this.keys) return;
    this.keys = keys;
    this.isStale = true;
    // Heights of rows that are gone are forgotten once they outnumber the others.
    if (this.heights.size > 2 * keys.length + 1_000) this.forget(new Set(keys));
  }

  /** Record the measured height of a row; returns whether it has changed. */
  measure(key: string, height: number): boolean {
    const former = this.heights.get(key);
    if (former === height) return false;
    this.heights.set(key, height);
    this.sum += height - (former ?? 0);
    this.isStale = true;
    return true;
  }

  /** Forget all heights, because the width has changed. */
  clear(): void {
    this.heights.clear();
    [this.sum, this.isStale] = [0, true];
  }

  /** The distance of a row from the first row. The number of rows gives the height of all rows. */
  top(place: number): number {
    return this.tops()[Math.max(0, Math.min(place, this.keys.length))]!;
  }

  /** The row at a distance from the first row. */
  rowAt(top: number): number {
    const tops = this.tops();
    let [low, high] = [0, Math.max(0, this.keys.length - 1)];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (tops[middle]! <= top) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** The rows to draw for the visible part that begins at `top` and has a height. */
  drawn(top: number, height: number): DrawnRows {
    const count = this.keys.length;
    const first = Math.max(0, this.rowAt(top) - MARGIN);
    const end = Math.min(count, this.rowAt(top + height) + 1 + MARGIN);
    return { first, end, above: this.top(first), below: this.top(count) - this.top(end) };
  }

  private tops(): number[] {
    if (!this.isStale) return this.places;
    const mean = this.heights.size ? this.sum / this.heights.size : this.guess;
    const places = [0];
    for (const key of this.keys) places.push(places.at(-1)! + (this.heights.get(key) ?? mean));
    [this.places, this.isStale] = [places, false];
    return places;
  }

  private forget(kept: ReadonlySet<string>): void {
    for (const [key, height] of this.heights) {
      if (kept.has(key)) continue;
      this.heights.delete(key);
      this.sum -= height;
    }
  }
}
