/** A report as one HTML file without scripts: the texts and tables of the page, and pictures of its charts. */

import type { Schemas } from "../../api/client";
import { readColours } from "../../curves/chart_colours";
import { drawFrame } from "../../curves/chart_frame";
import { fileName, saveFile } from "../../curves/save_chart";
import { countText } from "../../parts/format";
import { documentHtml, escapeHtml, staticHtml } from "./static_html";

const WAIT_MS = 60_000;
const LOOK_MS = 100;

/** Have the browser save what an article shows. All its charts are drawn, or will be soon. */
export async function saveReport(report: Schemas["Report"], article: HTMLElement): Promise<void> {
  const pictures = await drawAll(article);
  const body = staticHtml(article, {
    base: location.href.split("#", 1)[0]!,
    pictureOf: (frame) => {
      const { text, width, height } = pictures.get(frame as unknown as Element)!;
      const name = (frame as unknown as Element).querySelector("figcaption strong")?.textContent ?? "chart";
      return `<img width="${width}" height="${height}" alt="${escapeHtml(name)}" src="data:image/svg+xml;charset=utf-8,${escapeHtml(encodeURIComponent(text))}">`;
    },
  });
  const html = documentHtml({ report, body, address: location.href, nowMs: Date.now(), colours: readColours() });
  saveFile(fileName(report.title, "html"), new Blob([html], { type: "text/html" }));
}

/** The picture of each chart, once all are drawn. */
async function drawAll(article: HTMLElement): Promise<Map<Element, ReturnType<typeof drawFrame>>> {
  const end = Date.now() + WAIT_MS;
  for (;;) {
    // First a task of its own: charts out of sight begin to load.
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    const loading = article.querySelectorAll(".loading").length;
    const pictures = new Map<Element, ReturnType<typeof drawFrame>>();
    let reason = "";
    for (const frame of article.querySelectorAll("figure.chart")) {
      try {
        pictures.set(frame, drawFrame(frame));
      } catch (error) {
        reason = String(error);
      }
    }
    if (loading === 0 && !reason) return pictures;
    if (Date.now() > end) throw new Error(`${loading ? `${countText(loading, "part")} of the report still ${loading === 1 ? "loads" : "load"}` : reason}. Wait until all charts are drawn, and export again.`);
  }
}
