/** The orders in which the cluster lists experiments. */

import type { Order } from "../../parts/table";

const ORDERS = ["id", "submitted", "name", "state", "user", "progress", "metric", "cost"] as const;

/** The order that an address names: newest first without one, or with one that does not exist. */
export function orderOf(query: URLSearchParams): Order {
  const by = ORDERS.find((name) => name === query.get("sort")) ?? "id";
  return { by, descending: query.get("order") !== "asc" };
}

/** Whether it is by age; others sort what the cluster has to read first. */
export function isByAge({ by }: Order): boolean {
  return by === "id" || by === "submitted";
}

export function isNewestFirst(order: Order): boolean {
  return isByAge(order) && order.descending;
}
