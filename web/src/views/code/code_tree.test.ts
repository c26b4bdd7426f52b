import { expect, test } from "vitest";
import { baseName, buildTree, shownPart, splitLines, type CodeFile, type Folder } from "./code_tree";

const file = (path: string): CodeFile => ({ path, size: 1, is_executable: false, is_text: true, sha256: "" });

function outline(folder: Folder): unknown {
  return [...folder.folders.map((one) => ({ [one.path]: outline(one) })), ...folder.files.map(({ path }) => baseName(path))];
}

test("folders are what paths have in common", () => {
  const paths = ["a.py", "net/deep/er/c.py", "net/b.py", "net-d.py", "constructor/__proto__"];
  expect(outline(buildTree(paths.map(file)))).toEqual([
    { "net/": [{ "net/deep/": [{ "net/deep/er/": ["c.py"] }] }, "b.py"] },
    { "constructor/": ["__proto__"] },
    "a.py",
    "net-d.py",
  ]);
});

test("ten thousand files are a tree at once", () => {
  const files = Array.from({ length: 10_000 }, (_, n) => file(`${Array(63).fill("d").join("/")}/${n}`));
  let folder = buildTree(files);
  for (let depth = 0; depth < 63; depth += 1) folder = folder.folders[0]!;
  expect(folder.files.length).toBe(10_000);
});

test("lines end as on any machine", () => {
  expect(splitLines("a\r\nb\n\nc\r")).toEqual(["a", "b", "", "c"]);
  expect([splitLines(""), splitLines("\n"), splitLines("a")]).toEqual([[], [""], ["a"]]);
});

test("the part with the line is shown, and never one that is not there", () => {
  // 25 lines in parts of 10: lines 1 to 10, 11 to 20, 21 to 25.
  const of = (part: string | null, line: string | null) => shownPart(25, 10, part, line);
  expect([of(null, null), of(null, "10"), of(null, "11"), of(null, "99")]).toEqual([0, 0, 1, 2]);
  expect([of("2", "1"), of("2", null), of("9", null), of("-1", null), of("x", null)]).toEqual([0, 1, 2, 0, 0]);
  expect(shownPart(0, 10, null, "5")).toBe(0);
});
