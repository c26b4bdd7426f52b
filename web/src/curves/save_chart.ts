/** A chart as a picture and its numbers as a table, for elsewhere. */

import type { Columns } from "./joining";

/** The columns as CSV: a row for each step, a field without a value empty. */
export function curvesCsv(xLabel: string, labels: readonly string[], [steps, ...curves]: Columns): string {
  const rows = steps.map((step, n) => [step, ...curves.map((curve) => curve[n] ?? "")].join(","));
  return [[xLabel, ...labels].map(csvText).join(","), ...rows, ""].join("\r\n");
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

/** Have the browser save what a canvas shows, on the colour of the page and below a title. */
export function savePicture(drawn: HTMLCanvasElement, title: string, legend: readonly { label: string; colour: string }[]): void {
  const style = getComputedStyle(document.body);
  const line = Math.round(22 * devicePixelRatio);
  const canvas = document.createElement("canvas");
  canvas.width = drawn.width;
  canvas.height = drawn.height + line * (1 + Math.min(legend.length, LEGEND_MAX));
  const context = canvas.getContext("2d")!;
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.font = `${14 * devicePixelRatio}px sans-serif`;
  context.textBaseline = "middle";
  context.fillStyle = style.color;
  context.fillText(title, line / 2, line / 2);
  context.drawImage(drawn, 0, line);
  legend.slice(0, LEGEND_MAX).forEach(({ label, colour }, n) => {
    const y = drawn.height + line * (n + 1.5);
    context.fillStyle = colour;
    context.fillRect(line / 2, y - line / 8, line, line / 4);
    context.fillStyle = style.color;
    context.fillText(label, 2 * line, y);
  });
  canvas.toBlob((picture) => picture && saveFile(fileName(title, "png"), picture));
}

// Of more curves a picture names the first.
const LEGEND_MAX = 20;
