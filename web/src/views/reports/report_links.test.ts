import { expect, test } from "vitest";
import { parseMarkdown, type CodeBlock } from "../../parts/markdown";
import { linkOf, replaceLines } from "./report_links";

test("only addresses of the web, of mail and of views are links", () => {
  for (const to of ["https://a.example", "HTTP://a.example", "mailto:a@b.example", "#/experiments/7"]) expect(linkOf(to)).toBe(to);
  for (const to of ["javascript:alert(1)", "data:text/html,x", "//a.example", "/api", "#x", "vbscript:x"]) expect(linkOf(to)).toBeNull();
});

test("a block is replaced where it stands, also inside a list", () => {
  const text = "# a\n\n- b\n  ```chart\n  kind: best\n  experiments: 7\n  ```\nend";
  const list = parseMarkdown(text)[1]!;
  const block = (list.kind === "list" ? list.items[0]![1] : undefined) as CodeBlock;
  expect(replaceLines(text, block.line, block.text, "kind: best\nexperiments: 8\ntitle: c")).toBe("# a\n\n- b\n  ```chart\n  kind: best\n  experiments: 8\n  title: c\n  ```\nend");
});
