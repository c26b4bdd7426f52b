/** The items of a report by pool and day, as rows and columns of a map. */

export interface DayItem {
  /** The day. */
  name: string;
  /** The pool. */
  title: string;
  wasted: number;
  instance_cost: number | null;
}

export interface UseRows<T> {
  days: string[];
  pools: { pool: string; cells: (T | undefined)[] }[];
}

/** The pools in alphabetical order, each with a cell for each day on which any pool has an item. */
export function mapOfDays<T extends DayItem>(items: T[]): UseRows<T> {
  const days = [...new Set(items.map(({ name }) => name))].sort();
  const pools = [...new Set(items.map(({ title }) => title))].sort();
  const found = new Map(items.map((item) => [`${item.title} ${item.name}`, item]));
  return {
    days,
    pools: pools.map((pool) => ({ pool, cells: days.map((day) => found.get(`${pool} ${day}`)) })),
  };
}

/** The part of the paid money that was wasted, from 0 to 1; null if nothing was paid. */
export function wastedShare({ wasted, instance_cost: paid }: DayItem): number | null {
  return paid ? Math.min(1, wasted / paid) : null;
}
