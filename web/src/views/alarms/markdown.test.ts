import { expect, test } from "vitest";
import { linkedAlarm, parseInline, parseMarkdown, type Inline } from "./markdown";

const RUNBOOK = import.meta.glob<string>("../../../../docs/runbook/*.md", { query: "?raw", import: "default", eager: true });

test("blocks are told apart", () => {
  const text = "# Alarm `lag`\n\n**Meaning.** Two\nlines.\n\n- one\n  goes on\n- two\n\n| a | b |\n|---|---|\n| 1 | `x` |\n\n```\ncode # none\n```\n";
  expect(parseMarkdown(text)).toEqual([
    { kind: "heading", level: 1, content: [{ kind: "text", text: "Alarm " }, { kind: "code", text: "lag" }] },
    { kind: "paragraph", content: [{ kind: "strong", text: "Meaning." }, { kind: "text", text: " Two lines." }] },
    { kind: "list", items: [[{ kind: "text", text: "one goes on" }], [{ kind: "text", text: "two" }]] },
    {
      kind: "table",
      head: [[{ kind: "text", text: "a" }], [{ kind: "text", text: "b" }]],
      rows: [[[{ kind: "text", text: "1" }], [{ kind: "code", text: "x" }]]],
    },
    { kind: "code", text: "code # none" },
  ]);
});

test("a link has its text without marks, and code is no link", () => {
  expect(parseInline("see [`lag`](lag.md) or `[x](y)`")).toEqual([
    { kind: "text", text: "see " },
    { kind: "link", text: "lag", to: "lag.md" },
    { kind: "text", text: " or " },
    { kind: "code", text: "[x](y)" },
  ]);
});

test("only pages of the runbook are alarms", () => {
  expect(linkedAlarm("queue-wait.md#look")).toBe("queue-wait");
  for (const to of ["../aws.md", "README.md", "https://x.example/lag.md", "lag.md/x"]) expect(linkedAlarm(to)).toBeNull();
});

test("the runbook is found", () => {
  expect(Object.keys(RUNBOOK).length).toBeGreaterThan(9);
});

test.each(Object.entries(RUNBOOK))("%s has no marks that the page would show", (_, text) => {
  const blocks = parseMarkdown(text);
  const inline: Inline[] = blocks.flatMap((block) => {
    if (block.kind === "heading" || block.kind === "paragraph") return block.content;
    if (block.kind === "list") return block.items.flat();
    return block.kind === "table" ? [...block.head, ...block.rows.flat()].flat() : [];
  });
  expect(inline.filter(({ kind, text }) => kind === "text" && /[`|]|\*\*|\]\(/.test(text))).toEqual([]);
  for (const block of blocks) {
    if (block.kind === "table") for (const row of block.rows) expect(row.length).toBe(block.head.length);
  }
});
