/** The numbers of charts as CSV, and files that the browser saves. */

import type { Columns } from "./joining";

/** The columns as CSV: a row for each step, a field without a value empty. */
export function curvesCsv(xLabel: string, labels: readonly string[], [steps, ...curves]: Columns): string {
  const rows = steps.map((step, n) => [step, ...curves.map((curve) => curve[n] ?? "")].join(","));
  return [[xLabel, ...labels].map(csvText).join(","), ...rows, ""].join("\r\n");
}

/** Rows as CSV below a head: numbers as they are, null and undefined as empty fields. */
export function rowsCsv(head: readonly string[], rows: readonly (readonly unknown[])[]): string {
  const lines = rows.map((row) => row.map(fieldText).join(","));
  return [head.map(csvText).join(","), ...lines, ""].join("\r\n");
}

function fieldText(value: unknown): string {
  if (value === null || value === undefined) return "";
  return typeof value === "number" ? String(value) : csvText(typeof value === "string" ? value : JSON.stringify(value));
}

/** A text as a field; one that a spreadsheet would compute is kept from that by an apostrophe. */
function csvText(text: string): string {
  const calm = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(calm) ? `"${calm.replaceAll('"', '""')}"` : calm;
}

/** A name for a file made of any text. */
export function fileName(text: string, ending: string): string {
  return `${text.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80) || "chart"}.${ending}`;
}

/** Have the browser save a file. */
export function saveFile(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href));
}
