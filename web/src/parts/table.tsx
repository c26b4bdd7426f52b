/** A table of rows, which a click on a column's head sorts if it says by what, here or on the cluster. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useRowWindow } from "./row_window";
import { sortRows, type Value } from "./sorting";

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
  /** Boxes at the rows' starts, and which are checked. */
  chosen?: Set<string | number>;
  onChoose?: (chosen: Set<string | number>) => void;
}

export function Table<T>({ label, columns, rows, rowKey, order, onOrder, chosen, onChoose }: Props<T>) {
  const [orderHere, setOrderHere] = useState<Order | null>(null);
  const [current, setOrder] = onOrder ? [order, onOrder] : [orderHere, setOrderHere];
  const value = onOrder ? undefined : columns.find(({ key }) => key === orderHere?.by)?.value;
  const sorted = value ? sortRows(rows, value, orderHere!.descending) : rows;

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
              {column.title}{isSorted ? (current.descending ? " ↓" : " ↑") : ""}
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

  const placeOf = (key: string) => sorted.findIndex((row) => String(rowKey(row)) === key);
  const { body, parts, isWhole, onScroll, onFocusIn, onFocusOut } = useRowWindow(sorted.length, placeOf);
  const cells = columns.length + (onChoose ? 1 : 0);
  const isAllChosen = rows.length > 0 && rows.every((row) => chosen?.has(rowKey(row)));
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0} onScroll={onScroll}>
      <table aria-label={label} {...(!isWhole && { "aria-rowcount": sorted.length + 1 })}>
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
            ? sorted.slice(first, end).map((row, n) => drawRow(row, first + n))
            : [<tr key={`gap ${part}`} aria-hidden="true"><td colSpan={cells} style={{ height: `${gap}px`, padding: 0 }} /></tr>])}
        </tbody>
      </table>
    </div>
  );
}
