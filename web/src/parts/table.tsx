/** A table of rows, which a click on a column's head sorts if it says by what, here or on the cluster. Rows may be in groups. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useRowWindow } from "./row_window";
import { sortRows, type Value } from "./sorting";

/** The number of columns from which a table has less space between its columns. */
const DENSE_COLUMNS_MIN = 12;

export interface Column<T> {
  key: string;
  title: string;
  show: (row: T) => ComponentChildren;
  /** What rows are sorted by; without it the column's head is no button. */
  value?: (row: T) => Value;
  /** The order by this column, where the cluster sorts. */
  order?: string;
  isNumber?: boolean;
}

/** An order of rows: by a column's key here, by a column's `order` on the cluster. */
export interface Order {
  by: string;
  descending: boolean;
}

/** The group of a row: rows with the same key stand together, below the title. */
export interface Group {
  key: string;
  title: ComponentChildren;
  /** The number of rows in words, where the cluster has more than the table. */
  countText?: (shown: number) => string;
}

/** A line of the body: a row, or the title of a group and its number of rows. */
type Line<T> = { row: T } | { group: Group; count: number };

/** What can be done with a row stays in sight where a table is wider than the window. */
function cellClass(column: { key: string; isNumber?: boolean }): string {
  if (column.key === "actions") return "kept";
  return column.isNumber ? "number" : "";
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string | number;
  /** The order in which the rows come from the cluster, and what asks for another one; without them the rows are sorted here. */
  order?: Order;
  onOrder?: (order: Order) => void;
  /** The order of rows that are sorted here, until a head is clicked. */
  initialOrder?: Order;
  group?: (row: T) => Group;
  /** Boxes at the rows' starts, and which are checked. */
  chosen?: Set<string | number>;
  onChoose?: (chosen: Set<string | number>) => void;
}

export function Table<T>({ label, columns, rows, rowKey, order, onOrder, initialOrder, group, chosen, onChoose }: Props<T>) {
  const [orderHere, setOrderHere] = useState<Order | null>(initialOrder ?? null);
  const [current, setOrder] = onOrder ? [order, onOrder] : [orderHere, setOrderHere];
  const value = onOrder ? undefined : columns.find(({ key }) => key === orderHere?.by)?.value;
  const sorted = value ? sortRows(rows, value, orderHere!.descending) : rows;
  const lines = group ? groupRows(sorted, group) : sorted.map((row): Line<T> => ({ row }));

  function choose(keys: (string | number)[], checked: boolean): void {
    const next = new Set(chosen);
    keys.forEach((key) => (checked ? next.add(key) : next.delete(key)));
    onChoose?.(next);
  }

  function head(column: Column<T>) {
    const by = onOrder ? column.order : column.value && column.key;
    const isSorted = by !== undefined && current?.by === by;
    const descending = isSorted ? !current.descending : false;
    const sort = isSorted ? (current.descending ? "descending" : "ascending") : "none";
    return (
      <th key={column.key} scope="col" class={cellClass(column)}
        aria-sort={by ? sort : undefined}>
        {by
          ? <button class="head" onClick={() => setOrder({ by, descending })}>
              {column.title}{isSorted ? (current.descending ? "\u00a0↓" : "\u00a0↑") : ""}
            </button>
          : column.title}
      </th>
    );
  }

  function drawRow(row: T, place: number) {
    const key = rowKey(row);
    return (
      <tr key={`row ${key}`} data-key={key} {...(!isWhole && { "aria-rowindex": place + 2 })}>
        {onChoose && (
          <td>
            <input type="checkbox" aria-label={`choose ${key}`} checked={chosen?.has(key)}
              onChange={(event) => choose([key], event.currentTarget.checked)} />
          </td>
        )}
        {columns.map((column) => (
          <td key={column.key} class={cellClass(column)}>{column.show(row)}</td>
        ))}
      </tr>
    );
  }

  function drawLine(line: Line<T>, place: number) {
    if ("row" in line) return drawRow(line.row, place);
    return (
      <tr key={`group ${line.group.key}`} class="group" {...(!isWhole && { "aria-rowindex": place + 2 })}>
        <th scope="rowgroup" colSpan={cells}>{line.group.title} <span class="quiet">({line.group.countText?.(line.count) ?? line.count})</span></th>
      </tr>
    );
  }

  const placeOf = (key: string) => lines.findIndex((line) => "row" in line && String(rowKey(line.row)) === key);
  const { body, parts, isWhole, onScroll, onFocusIn, onFocusOut } = useRowWindow(lines.length, placeOf);
  const cells = columns.length + (onChoose ? 1 : 0);
  const isAllChosen = rows.length > 0 && rows.every((row) => chosen?.has(rowKey(row)));
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0} onScroll={onScroll}>
      <table aria-label={label} class={columns.length >= DENSE_COLUMNS_MIN ? "dense" : undefined} {...(!isWhole && { "aria-rowcount": lines.length + 1 })}>
        <thead>
          <tr>
            {onChoose && (
              <th scope="col">
                <input type="checkbox" aria-label="choose all" checked={isAllChosen}
                  onChange={(event) => choose(rows.map(rowKey), event.currentTarget.checked)} />
              </th>
            )}
            {columns.map(head)}
          </tr>
        </thead>
        <tbody ref={body} onFocusIn={onFocusIn} onFocusOut={onFocusOut}>
          {parts.flatMap(({ first, end, gap }, part) => gap === undefined
            ? lines.slice(first, end).map((line, n) => drawLine(line, first + n))
            : [<tr key={`gap ${part}`} aria-hidden="true"><td colSpan={cells} style={{ height: `${gap}px`, padding: 0 }} /></tr>])}
        </tbody>
      </table>
    </div>
  );
}

/** The rows group by group, in the order in which each group appears first. */
function groupRows<T>(rows: T[], groupOf: (row: T) => Group): Line<T>[] {
  const groups = new Map<string, { group: Group; rows: T[] }>();
  for (const row of rows) {
    const group = groupOf(row);
    const known = groups.get(group.key);
    if (known) known.rows.push(row);
    else groups.set(group.key, { group, rows: [row] });
  }
  return [...groups.values()].flatMap((one): Line<T>[] => [
    { group: one.group, count: one.rows.length },
    ...one.rows.map((row): Line<T> => ({ row })),
  ]);
}
