/** Markdown as a tree without any HTML: what texts of users and pages of the runbook use. */

export type Inline =
  | { kind: "text" | "code"; text: string }
  | { kind: "strong" | "em" | "strike"; content: Inline[] }
  | { kind: "link"; content: Inline[]; to: string };

export type Block =
  | { kind: "heading"; level: number; content: Inline[] }
  | { kind: "paragraph"; content: Inline[] }
  | CodeBlock
  | { kind: "list"; start: number | null; items: Block[][] }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "rule" }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] };

export interface CodeBlock {
  kind: "code";
  /** The word after the fence; empty without one. */
  language: string;
  text: string;
  /** The line of the text's first line in the whole document, from 1. */
  line: number;
}

// Of lists and quotes inside each other, and of marks inside each other: hostile texts have thousands.
const DEPTH_MAX = 8;
const FENCE = /^(`{3,}|~{3,})\s*(\S*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s{0,3})([-*+]|\d{1,9}[.)])\s+(?=\S)/;
const QUOTE = /^> ?/;
const RULE = /^(?:-{3,}|\*{3,}|_{3,})\s*$/;
const BEGINS = [FENCE, HEADING, ITEM, QUOTE, RULE, /^\|/];
// Repetitions have limits, so that a long text without an end mark takes no time that grows by its square.
const MARKS = [
  String.raw`\\([!-/:-@[-\x60{-~])`,
  "`([^`]{1,2000})`",
  String.raw`\*\*(\S(?:.{0,1000}?\S)?)\*\*(?!\*)`,
  String.raw`~~(\S(?:.{0,1000}?\S)?)~~`,
  String.raw`\*([^*\s](?:[^*]{0,1000}?[^*\s])?)\*`,
  String.raw`(?<![\p{L}\p{N}_])_([^_\s](?:[^_]{0,1000}?[^_\s])?)_(?![\p{L}\p{N}_])`,
  "!?\\[((?:`[^`]{0,500}`|[^\\]`]){1,500})\\]\\(([^)\\s]{1,2000})\\)",
  String.raw`(https?:\/\/[^\s<>"'\x60)\]]{0,2000}[^\s<>"'\x60)\].,;:!?])`,
];
const INLINE = new RegExp(MARKS.join("|"), "gu");

/** Parse the blocks of a text. Unknown forms become paragraphs. */
export function parseMarkdown(text: string): Block[] {
  return parseLines(text.split(/\r?\n/), 1, 0);
}

function parseLines(lines: readonly string[], firstLine: number, depth: number): Block[] {
  const blocks: Block[] = [];
  let place = 0;

  /** The lines from here on that meet a condition. */
  function take(isMember: (line: string) => boolean): string[] {
    const first = place;
    while (place < lines.length && isMember(lines[place]!)) place += 1;
    return lines.slice(first, place);
  }

  function takeCode(mark: string, language: string): CodeBlock {
    place += 1;
    const line = firstLine + place;
    const text = take((one) => !one.startsWith(mark)).join("\n");
    place += 1;
    return { kind: "code", language, text, line };
  }

  function takeList(): Block {
    const isOrdered = (line: string) => /\d/.test(ITEM.exec(line)?.[2] ?? "");
    const ordered = isOrdered(lines[place]!);
    const start = ordered ? Number.parseInt(lines[place]!.trim(), 10) : null;
    const items: Block[][] = [];
    while (place < lines.length && ITEM.test(lines[place]!) && isOrdered(lines[place]!) === ordered) {
      const [begin, line] = [lines[place]!, firstLine + place];
      const indent = ITEM.exec(begin)![0].length;
      place += 1;
      const more = take((one) => /^\s{2,}\S/.test(one) || (one.trim() === "" && /^\s{2,}\S/.test(lines[place + 1] ?? "")));
      const own = [begin.slice(indent), ...more.map((one) => one.slice(Math.min(indent, one.length - one.trimStart().length)))];
      items.push(parseLines(own, line, depth + 1));
    }
    return { kind: "list", start, items };
  }

  while (place < lines.length) {
    const line = lines[place]!;
    const heading = HEADING.exec(line);
    const fence = FENCE.exec(line);
    if (!line.trim()) place += 1;
    else if (heading) {
      blocks.push({ kind: "heading", level: heading[1]!.length, content: parseInline(heading[2]!.replace(/\s+#+\s*$/, "")) });
      place += 1;
    } else if (fence) blocks.push(takeCode(fence[1]!, fence[2]!));
    else if (RULE.test(line)) {
      blocks.push({ kind: "rule" });
      place += 1;
    } else if (line.startsWith("|")) blocks.push(parseTable(take((one) => one.startsWith("|"))));
    else if (QUOTE.test(line) && depth < DEPTH_MAX) {
      const first = firstLine + place;
      blocks.push({ kind: "quote", blocks: parseLines(take((one) => QUOTE.test(one)).map((one) => one.replace(QUOTE, "")), first, depth + 1) });
    } else if (ITEM.test(line) && depth < DEPTH_MAX) blocks.push(takeList());
    else {
      place += 1;
      const more = take((one) => one.trim() !== "" && !BEGINS.some((form) => form.test(one)));
      blocks.push({ kind: "paragraph", content: parseInline([line, ...more].map((one) => one.trim()).join(" ")) });
    }
  }
  return blocks;
}

function parseTable(lines: string[]): Block {
  const cells = (line: string) =>
    line.replace(/^\||\|\s*$/g, "").split(/(?<!\\)\|/).map((cell) => parseInline(cell.replaceAll("\\|", "|").trim()));
  const [head, , ...rows] = lines;
  return { kind: "table", head: cells(head!), rows: rows.map(cells) };
}

export function parseInline(text: string, depth = 0): Inline[] {
  const parts: Inline[] = [];
  const addText = (more: string) => {
    const last = parts.at(-1);
    if (last?.kind === "text") last.text += more;
    else if (more) parts.push({ kind: "text", text: more });
  };
  const inside = (part: string) => (depth < DEPTH_MAX ? parseInline(part, depth + 1) : [{ kind: "text" as const, text: part }]);
  let passed = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, escaped, code, strong, strike, star, line, link, to, address] = found;
    addText(text.slice(passed, found.index));
    passed = found.index + whole.length;
    const em = star ?? line;
    if (escaped !== undefined) addText(escaped);
    else if (code !== undefined) parts.push({ kind: "code", text: code });
    else if (strong !== undefined) parts.push({ kind: "strong", content: inside(strong) });
    else if (strike !== undefined) parts.push({ kind: "strike", content: inside(strike) });
    else if (em !== undefined) parts.push({ kind: "em", content: inside(em) });
    else if (link !== undefined) parts.push({ kind: "link", content: linkText(link), to: to! });
    else parts.push({ kind: "link", content: [{ kind: "text", text: address! }], to: address! });
  }
  addText(text.slice(passed));
  return parts;
}

/** The text of a link, in which no other link is. */
function linkText(text: string): Inline[] {
  return [{ kind: "text", text: text.replaceAll("`", "") }];
}

/** The text without its marks. */
export function plainText(content: readonly Inline[]): string {
  return content.map((part) => ("content" in part ? plainText(part.content) : part.text)).join("");
}
