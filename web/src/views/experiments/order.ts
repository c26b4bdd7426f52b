/** The orders in which the cluster lists experiments. */

import type { Order } from "../../parts/table";

const ORDERS: readonly string[] = ["id", "submitted", "name", "state", "user", "progress", "metric", "cost"];

/** The order that an address names: newest first without one, or with one that does not exist. */
export function orderOf(query: URLSearchParams): Order {
  const sort = query.get("sort") ?? "";
  const by = ORDERS.includes(sort) || isValueColumn(sort) ? sort : "id";
  return { by, descending: query.get("order") !== "asc" };
}

/** Return whether a column shows a metric or a hyperparameter, such as `metric:loss`. */
export function isValueColumn(key: string): boolean {
  return /^(?:metric|hparam):./su.test(key);
}

/** Whether it is by age; others sort what the cluster has to read first. */
export function isByAge({ by }: Order): boolean {
  return by === "id" || by === "submitted";
}

export function isNewestFirst(order: Order): boolean {
  return isByAge(order) && order.descending;
}
