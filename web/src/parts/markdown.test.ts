import { expect, test } from "vitest";
import { linkedAlarm } from "../views/alarms/runbook_text";
import { parseInline, parseMarkdown, plainText, type Block, type Inline } from "./markdown";

const RUNBOOK = import.meta.glob<string>("../../../docs/runbook/*.md", { query: "?raw", import: "default", eager: true });
const text = (words: string): Inline => ({ kind: "text", text: words });
const paragraph = (words: string): Block => ({ kind: "paragraph", content: [text(words)] });

test("blocks are told apart", () => {
  const source = "# Alarm `lag`\n\n**Meaning.** Two\nlines.\n\n- one\n  goes on\n- two\n\n| a | b |\n|---|---|\n| 1 | `x` |\n\n```\ncode # none\n```\n> quoted\n---\n";
  expect(parseMarkdown(source)).toEqual([
    { kind: "heading", level: 1, content: [text("Alarm "), { kind: "code", text: "lag" }] },
    { kind: "paragraph", content: [{ kind: "strong", content: [text("Meaning.")] }, text(" Two lines.")] },
    { kind: "list", start: null, items: [[paragraph("one goes on")], [paragraph("two")]] },
    { kind: "table", head: [[text("a")], [text("b")]], rows: [[[text("1")], [{ kind: "code", text: "x" }]]] },
    { kind: "code", language: "", text: "code # none", line: 15 },
    { kind: "quote", blocks: [paragraph("quoted")] },
    { kind: "rule" },
  ]);
});

test("lists have numbers, and lists and code inside", () => {
  const source = "3. one\n   - inner\n\n   ```chart\n   kind: best\n   ```\n4. two";
  expect(parseMarkdown(source)).toEqual([
    {
      kind: "list",
      start: 3,
      items: [
        [paragraph("one"), { kind: "list", start: null, items: [[paragraph("inner")]] }, { kind: "code", language: "chart", text: "kind: best", line: 5 }],
        [paragraph("two")],
      ],
    },
  ]);
});

test("a block of code has its language and the line of its first line, also without an end", () => {
  expect(parseMarkdown("a\n\n~~~chart x\nkind: best\n```\n")).toEqual([
    paragraph("a"),
    { kind: "code", language: "chart", text: "kind: best\n```\n", line: 4 },
  ]);
});

test("a link has its text without marks, and code is no link", () => {
  expect(parseInline("see [`lag`](lag.md) or `[x](y)`")).toEqual([
    text("see "),
    { kind: "link", content: [text("lag")], to: "lag.md" },
    text(" or "),
    { kind: "code", text: "[x](y)" },
  ]);
});

test("marks are inside each other, and escaped marks are text", () => {
  expect(parseInline("**a *b***, ~~c~~, _d_ of snake_case_name, 2 * 3 * 4, \\*e\\*")).toEqual([
    { kind: "strong", content: [text("a "), { kind: "em", content: [text("b")] }] },
    text(", "),
    { kind: "strike", content: [text("c")] },
    text(", "),
    { kind: "em", content: [text("d")] },
    text(" of snake_case_name, 2 * 3 * 4, *e*"),
  ]);
});

test("addresses are links", () => {
  expect(parseInline("see https://a.example/b?c=d, e")).toEqual([
    text("see "),
    { kind: "link", content: [text("https://a.example/b?c=d")], to: "https://a.example/b?c=d" },
    text(", e"),
  ]);
});

test.each(["**a", "[a](", "`a", "_a ", "~~a", "> ", "- ", "1. a\n", "  - a\n", "[`", "![](", "```\n", "|a|\n", "\\"])("a long text of %j is parsed at once", (part) => {
  const source = part.repeat(16_384 / part.length);
  const begun = performance.now();
  parseMarkdown(source);
  // Work that grows by the square of the length takes minutes.
  expect(performance.now() - begun).toBeLessThan(20_000);
});

test("only pages of the runbook are alarms", () => {
  expect(linkedAlarm("queue-wait.md#look")).toBe("queue-wait");
  for (const to of ["../aws.md", "README.md", "https://x.example/lag.md", "lag.md/x"]) expect(linkedAlarm(to)).toBeNull();
});

test("the runbook is found", () => {
  expect(Object.keys(RUNBOOK).length).toBeGreaterThan(9);
});

test.each(Object.entries(RUNBOOK))("%s has no marks that the page would show", (_, source) => {
  const blocks = parseMarkdown(source);
  const texts = blocks.flatMap(inlineOf).map((content) => plainText(content.filter(({ kind }) => kind !== "code")));
  expect(texts.filter((words) => /[`|]|\*\*|\]\(/.test(words))).toEqual([]);
  for (const block of blocks) {
    if (block.kind === "table") for (const row of block.rows) expect(row.length).toBe(block.head.length);
  }
});

function inlineOf(block: Block): Inline[][] {
  if (block.kind === "heading" || block.kind === "paragraph") return [block.content];
  if (block.kind === "list") return block.items.flat().flatMap(inlineOf);
  if (block.kind === "quote") return block.blocks.flatMap(inlineOf);
  return block.kind === "table" ? [...block.head, ...block.rows.flat()] : [];
}
