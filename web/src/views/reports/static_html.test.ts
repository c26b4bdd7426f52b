import { expect, test } from "vitest";
import { documentHtml, staticHtml, type StaticNode } from "./static_html";

/** An element as a browser would have it. */
function element(nodeName: string, attributes: Record<string, string>, ...children: (StaticNode | string)[]): StaticNode {
  const childNodes = children.map((child): StaticNode => (typeof child === "string" ? { nodeType: 3, nodeName: "#text", textContent: child, childNodes: [] } : child));
  return { nodeType: 1, nodeName, textContent: null, childNodes, getAttribute: (name) => attributes[name] ?? null };
}

const HOW = { base: "https://cluster.example/ui/", pictureOf: () => '<img alt="loss" src="data:image/svg+xml,x">' };
const html = (...children: (StaticNode | string)[]) => staticHtml(element("ARTICLE", {}, ...children), HOW);

test("texts are escaped, and scripts, styles and frames are left out with their content", () => {
  const hostile = `</script><script>alert(1)</script>"'&`;
  expect(html(element("P", { onclick: "alert(1)", style: "x" }, hostile))).toBe("<p>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;</p>\n");
  for (const name of ["SCRIPT", "STYLE", "IFRAME", "IMG", "svg", "OBJECT", "INPUT", "TEXTAREA", "BUTTON", "FORM"]) expect(html(element(name, {}, hostile))).toBe("");
});

test("links are of the web, of mail, or of views of the page", () => {
  const link = (to: string) => html(element("A", { href: to }, "a"));
  expect(link("https://a.example/?b=\"c&d")).toBe('<a href="https://a.example/?b=&quot;c&amp;d" rel="noreferrer">a</a>');
  expect(link("#/experiments/7")).toBe('<a href="https://cluster.example/ui/#/experiments/7" rel="noreferrer">a</a>');
  for (const to of ["javascript:alert(1)", " javascript:alert(1)", "data:text/html,x", "//a.example", "JAVASCRIPT:x", ""]) expect(link(to)).toBe("a");
});

test("a chart is a picture under its title, and its tools and headings are left out", () => {
  const chart = element("SECTION", { class: "report-chart adjusted" },
    element("DIV", { class: "report-chart-head" }, element("STRONG", {}, "Rates"), element("SPAN", { class: "chart-tools" }, element("A", { href: "#/x" }, "Open"))),
    element("H2", {}, "Optimization history"),
    element("DIV", { class: "tools" }, element("LABEL", {}, "Over")),
    element("FIGURE", { class: "chart linked" }, "canvas"));
  expect(html(chart)).toBe('<div class="part"><strong>Rates</strong><figure><img alt="loss" src="data:image/svg+xml,x"></figure>\n</div>\n');
});

test("tables keep their numbers, and heads that sort become texts", () => {
  const table = element("TABLE", { "aria-label": "x" },
    element("THEAD", {}, element("TR", {}, element("TH", { class: "number", scope: "col" }, element("BUTTON", { class: "head" }, "Id")))),
    element("TBODY", {}, element("TR", {}, element("TD", { class: "number" }, "7"), element("TD", {}, element("TIME", { datetime: "2026-11-30T01:00:00.000Z" }, "Nov 30")))));
  expect(html(table).replaceAll("\n", "")).toBe(
    '<table><thead><tr><th class="number">Id</th></tr></thead><tbody><tr><td class="number">7</td><td><time datetime="2026-11-30T01:00:00.000Z">Nov 30</time></td></tr></tbody></table>');
});

test("the file has no script, a policy that forbids scripts, and the date of its data", () => {
  const text = documentHtml({
    report: { title: "</title><script>alert(1)</script>", user: "<b>", revision: 4, updated_by: "b" },
    body: "<p>x</p>", address: "https://cluster.example/ui/#/reports/3", nowMs: Date.UTC(2026, 10, 30, 1, 2, 3),
    colours: { isDark: true, text: "#fff", quiet: "#ccc", line: "#333", back: "#000" },
  });
  expect(text).not.toContain("<script");
  expect(text).toContain("default-src 'none'; img-src data:; style-src 'unsafe-inline'");
  expect(text).toContain("<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>");
  expect(text).toContain("By &lt;b&gt;. Data of <time datetime=\"2026-11-30T01:02:03.000Z\">2026-11-30 01:02 UTC</time>, revision 4 of the text.");
  expect(text).toContain("color-scheme: dark");
});
