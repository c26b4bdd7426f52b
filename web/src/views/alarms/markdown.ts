/** The part of Markdown that the pages of the runbook use, as a tree without any HTML. */

export type Inline =
  | { kind: "text" | "code" | "strong"; text: string }
  | { kind: "link"; text: string; to: string };

export type Block =
  | { kind: "heading"; level: number; content: Inline[] }
  | { kind: "paragraph"; content: Inline[] }
  | { kind: "code"; text: string }
  | { kind: "list"; items: Inline[][] }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] };

const INLINE = /`([^`]+)`|\*\*(.+?)\*\*|\[((?:`[^`]*`|[^\]`])+)\]\(([^)\s]+)\)/g;
const ITEM = /^[-*] /;

/** Parse the blocks of a text. Unknown forms become paragraphs. */
export function parseMarkdown(text: string): Block[] {
  const lines = text.split(/\r?\n/);
  const blocks: Block[] = [];
  let place = 0;

  /** The lines from here on that meet a condition. */
  function take(isMember: (line: string) => boolean): string[] {
    const first = place;
    while (place < lines.length && isMember(lines[place]!)) place += 1;
    return lines.slice(first, place);
  }

  while (place < lines.length) {
    const line = lines[place]!;
    const heading = /^(#{1,6}) (.*)$/.exec(line);
    if (!line.trim()) place += 1;
    else if (heading) {
      blocks.push({ kind: "heading", level: heading[1]!.length, content: parseInline(heading[2]!) });
      place += 1;
    } else if (line.startsWith("```")) {
      place += 1;
      blocks.push({ kind: "code", text: take((one) => !one.startsWith("```")).join("\n") });
      place += 1;
    } else if (line.startsWith("|")) blocks.push(parseTable(take((one) => one.startsWith("|"))));
    else if (ITEM.test(line)) blocks.push({ kind: "list", items: parseItems(take((one) => ITEM.test(one) || /^ +\S/.test(one))) });
    else blocks.push({ kind: "paragraph", content: parseInline(take((one) => one.trim() !== "" && !/^(#{1,6} |```|\||[-*] )/.test(one)).join(" ")) });
  }
  return blocks;
}

/** Items, each of which may go on in indented lines. */
function parseItems(lines: string[]): Inline[][] {
  const items: string[] = [];
  for (const line of lines) {
    if (ITEM.test(line)) items.push(line.replace(ITEM, ""));
    else items.push(`${items.pop() ?? ""} ${line.trim()}`);
  }
  return items.map(parseInline);
}

function parseTable(lines: string[]): Block {
  const cells = (line: string) =>
    line.replace(/^\||\|\s*$/g, "").split(/(?<!\\)\|/).map((cell) => parseInline(cell.replaceAll("\\|", "|").trim()));
  const [head, , ...rows] = lines;
  return { kind: "table", head: cells(head!), rows: rows.map(cells) };
}

export function parseInline(text: string): Inline[] {
  const parts: Inline[] = [];
  let passed = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > passed) parts.push({ kind: "text", text: text.slice(passed, found.index) });
    passed = found.index + found[0].length;
    if (found[1] !== undefined) parts.push({ kind: "code", text: found[1] });
    else if (found[2] !== undefined) parts.push({ kind: "strong", text: found[2] });
    else parts.push({ kind: "link", text: found[3]!.replaceAll("`", ""), to: found[4]! });
  }
  if (passed < text.length) parts.push({ kind: "text", text: text.slice(passed) });
  return parts;
}

/** The name of the alarm whose page a link of the runbook leads to; null for other links. */
export function linkedAlarm(to: string): string | null {
  const found = /^([a-z][a-z-]*)\.md(?:#.*)?$/.exec(to);
  return found ? found[1]! : null;
}
