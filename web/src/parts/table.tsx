/** A table of rows, which a click on a column's head sorts if it says by what. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { sortRows, type Value } from "./sorting";

export interface Column<T> {
  key: string;
  title: string;
  show: (row: T) => ComponentChildren;
  /** What rows are sorted by; without it the column's head is no button. */
  value?: (row: T) => Value;
  isNumber?: boolean;
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
  /** Boxes at the rows' starts, and which are checked. */
  chosen?: Set<string | number>;
  onChoose?: (chosen: Set<string | number>) => void;
}

export function Table<T>({ label, columns, rows, rowKey, chosen, onChoose }: Props<T>) {
  const [order, setOrder] = useState<{ key: string; descending: boolean } | null>(null);
  const by = columns.find((column) => column.key === order?.key)?.value;
  const sorted = by ? sortRows(rows, by, order!.descending) : rows;

  function choose(keys: (string | number)[], checked: boolean): void {
    const next = new Set(chosen);
    keys.forEach((key) => (checked ? next.add(key) : next.delete(key)));
    onChoose?.(next);
  }

  function head(column: Column<T>) {
    const isSorted = order?.key === column.key;
    const descending = isSorted ? !order.descending : false;
    const sort = isSorted ? (order.descending ? "descending" : "ascending") : "none";
    return (
      <th key={column.key} scope="col" class={cellClass(column)}
        aria-sort={column.value ? sort : undefined}>
        {column.value
          ? <button class="head" onClick={() => setOrder({ key: column.key, descending })}>
              {column.title}{isSorted ? (order.descending ? " ↓" : " ↑") : ""}
            </button>
          : column.title}
      </th>
    );
  }

  const isAllChosen = rows.length > 0 && rows.every((row) => chosen?.has(rowKey(row)));
  return (
    <div class="scroll" role="region" aria-label={label} tabIndex={0}>
      <table aria-label={label}>
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
        <tbody>
          {sorted.map((row) => {
            const key = rowKey(row);
            return (
              <tr key={key}>
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
          })}
        </tbody>
      </table>
    </div>
  );
}
