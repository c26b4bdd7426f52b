/** The elements of a report as HTML text that needs neither scripts nor the page's style. */

import type { Schemas } from "../../api/client";
import type { ChartColours } from "../../curves/chart_colours";

/** What is read of an element: tests have other elements than a browser's. */
export interface StaticNode {
  nodeType: number;
  nodeName: string;
  textContent: string | null;
  childNodes: ArrayLike<StaticNode>;
  getAttribute?: (name: string) => string | null;
}

interface How {
  /** The address of the page, for its links to views. */
  base: string;
  /** The picture of a chart, by its frame, as HTML. */
  pictureOf: (frame: StaticNode) => string;
  /** Whether the element is inside a chart, which has a title of its own. */
  isChart?: boolean;
}

const ELEMENT = 1;
const TEXT = 3;
const KEPT = new Set(["H2", "H3", "H4", "H5", "H6", "P", "UL", "OL", "LI", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "PRE", "CODE", "STRONG", "EM", "S", "BLOCKQUOTE", "DL", "DT", "DD", "TIME"]);
// What surrounds other elements leaves no trace; everything else that is not named is left out with its content.
const TRANSPARENT = new Set(["DIV", "SPAN", "SECTION", "ARTICLE"]);
const LEFT_OUT = ["hidden", "tools", "chart-tools", "legend", "colour-scale"];

/** The HTML of an element's content. Text of users is escaped; of attributes, the safe ones are written anew. */
export function staticHtml(element: StaticNode, how: How): string {
  return Array.from(element.childNodes).map((child) => nodeHtml(child, how)).join("");
}

function nodeHtml(node: StaticNode, how: How): string {
  if (node.nodeType === TEXT) return escapeHtml(node.textContent ?? "");
  if (node.nodeType !== ELEMENT) return "";
  const name = node.nodeName.toUpperCase();
  const classes = (node.getAttribute?.("class") ?? "").split(/\s+/);
  if (classes.some((one) => LEFT_OUT.includes(one)) || node.getAttribute?.("aria-hidden") === "true") return "";
  if (name === "FIGURE" && classes.includes("chart")) return `<figure>${how.pictureOf(node)}</figure>\n`;
  if (name === "BR" || name === "HR") return `<${name.toLowerCase()}>`;
  if (name === "A") return linkHtml(node, how);
  if (name === "BUTTON") return isTableHead(classes) ? staticHtml(node, how) : "";
  if (name === "PROGRESS") return "";
  if (TRANSPARENT.has(name)) return classes.includes("report-chart") ? `<div class="part">${staticHtml(node, { ...how, isChart: true })}</div>\n` : staticHtml(node, how);
  if (!KEPT.has(name) || (name === "H2" && how.isChart)) return "";
  const tag = name.toLowerCase();
  return `<${tag}${attributes(node, name)}>${staticHtml(node, how)}</${tag}>${/^(?:H\d|P|TR|LI|TABLE|UL|OL|PRE|DL)$/.test(name) ? "\n" : ""}`;
}

/** The head of a column that sorts on the page. */
function isTableHead(classes: string[]): boolean {
  return classes.includes("head");
}

function attributes(node: StaticNode, name: string): string {
  const start = node.getAttribute?.("start") ?? "";
  if (name === "OL" && /^\d{1,9}$/.test(start)) return ` start="${start}"`;
  const time = node.getAttribute?.("dateTime") ?? node.getAttribute?.("datetime") ?? "";
  if (name === "TIME" && /^[\dTZ:.+-]{1,40}$/.test(time)) return ` datetime="${time}"`;
  const isNumber = (node.getAttribute?.("class") ?? "").split(/\s+/).includes("number");
  return isNumber && (name === "TD" || name === "TH") ? ' class="number"' : "";
}

function linkHtml(node: StaticNode, how: How): string {
  const to = node.getAttribute?.("href") ?? "";
  const address = to.startsWith("#/") ? how.base + to : /^(?:https?:\/\/|mailto:)/i.test(to) ? to : "";
  const content = staticHtml(node, how);
  return address && content.trim() ? `<a href="${escapeHtml(address)}" rel="noreferrer">${content}</a>` : content;
}

export function escapeHtml(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;").replaceAll("'", "&#39;");
}

interface Whole {
  report: Pick<Schemas["Report"], "title" | "user" | "revision" | "updated_by">;
  body: string;
  /** The address of the live report. */
  address: string;
  nowMs: number;
  colours: ChartColours;
}

// No script runs in the file, and nothing is loaded, whatever the texts are.
const POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/** The whole file, in the colours of the page at the moment of the export. */
export function documentHtml({ report, body, address, nowMs, colours }: Whole): string {
  const date = `${new Date(nowMs).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(report.title)}</title>
<style>${styleOf(colours)}</style>
</head>
<body>
<main>
<h1>${escapeHtml(report.title)}</h1>
<p class="quiet">By ${escapeHtml(report.user)}. Data of <time datetime="${new Date(nowMs).toISOString()}">${date}</time>, revision ${report.revision} of the text. <a href="${escapeHtml(address)}" rel="noreferrer">Live report</a></p>
${body}
</main>
</body>
</html>
`;
}

function styleOf({ isDark, text, quiet, line, back }: ChartColours): string {
  return `
:root { color-scheme: ${isDark ? "dark" : "light"}; }
body { margin: 0; background: ${back}; color: ${text}; font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem; overflow-wrap: anywhere; }
a { color: inherit; }
img { max-width: 100%; height: auto; }
figure, .part { margin: 1rem 0; }
.quiet, dt { color: ${quiet}; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid ${line}; padding: .3rem .7rem; text-align: left; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { border: 1px solid ${line}; border-radius: 6px; padding: .6rem; overflow: auto; }
blockquote { margin: .6rem 0; padding-left: .9rem; border-left: 3px solid ${line}; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; } dd { margin: 0; }
`;
}
