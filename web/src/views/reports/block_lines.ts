/** The YAML of chart blocks: `name: value` lines, with the line of each value and each error. */

export type Scalar = string | number | boolean;

export interface Entry {
  /** The line of the name, in the numbers of the report's text. */
  line: number;
  value: Scalar | Scalar[];
}

export interface Problem {
  line: number;
  text: string;
}

export interface Lines {
  entries: Map<string, Entry>;
  problems: Problem[];
}

const LINE_MAX = 2000;
// Of a text that is no block, further errors say nothing.
const PROBLEMS_MAX = 20;
const NAME = /^([A-Za-z_][\w-]*):(?:\s+(.*))?$/;
const ITEM = /^\s*-\s+(.*)$/;
const NUMBER = /^[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?$/i;
// YAML gives these beginnings a meaning that a block has no use for.
const RESERVED = /^[&*!|>%@`{}[\],?]/;

/** Read the lines of a block. `firstLine` is the number of the first one. */
export function readLines(text: string, firstLine: number): Lines {
  const lines: Lines = { entries: new Map(), problems: [] };
  let list: { entry: Entry; values: Scalar[] } | null = null;
  text.split("\n").forEach((whole, n) => {
    if (lines.problems.length >= PROBLEMS_MAX) return;
    const line = firstLine + n;
    const read = (words: string) => readScalar(words, (problem) => lines.problems.push({ line, text: problem }));
    if (whole.length > LINE_MAX) {
      lines.problems.push({ line, text: `the line has ${whole.length} characters; expected at most ${LINE_MAX}` });
      return;
    }
    if (/^\s*(?:#.*)?$/.test(whole)) return;
    const item = ITEM.exec(whole);
    if (item && list) {
      const value = read(item[1]!);
      if (value !== null) list.values.push(value);
      return;
    }
    const [, name, rest = ""] = NAME.exec(whole.trimEnd()) ?? [];
    list = null;
    if (name === undefined) {
      lines.problems.push({ line, text: `expected \`name: value\` at the start of the line, not \`${shortWords(whole)}\`` });
      return;
    }
    if (lines.entries.has(name)) {
      lines.problems.push({ line, text: `\`${name}\` is there twice; remove one of the lines` });
      return;
    }
    const words = withoutComment(rest);
    const values: Scalar[] = [];
    const value = words === "" ? values : words.startsWith("[") ? readFlow(words, read, (problem) => lines.problems.push({ line, text: problem })) : read(words);
    if (value === null) return;
    const entry: Entry = { line, value };
    lines.entries.set(name, entry);
    if (words === "") list = { entry, values };
  });
  return lines;
}

/** A list in brackets on one line. */
function readFlow(words: string, read: (words: string) => Scalar | null, tell: (problem: string) => void): Scalar[] | null {
  if (!words.endsWith("]")) {
    tell("the list has no `]` at its end; expected a list on one line such as `[7, 9]`");
    return null;
  }
  const items = words.slice(1, -1).match(/\s*(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,]+)\s*/g) ?? [];
  return items.map((item) => item.trim()).filter(Boolean).flatMap((item) => read(item) ?? []);
}

function readScalar(whole: string, tell: (problem: string) => void): Scalar | null {
  const words = withoutComment(whole);
  if (words.startsWith('"')) {
    try {
      const value: unknown = JSON.parse(words);
      if (typeof value === "string") return value;
    } catch {
      // Told below.
    }
    tell(`the text \`${shortWords(words)}\` has no valid end quote; expected "text"`);
    return null;
  }
  if (words.startsWith("'")) {
    const quoted = /^'((?:[^']|'')*)'$/.exec(words);
    if (!quoted) tell(`the text \`${shortWords(words)}\` has no valid end quote; expected 'text'`);
    return quoted ? quoted[1]!.replaceAll("''", "'") : null;
  }
  if (RESERVED.test(words)) {
    tell(`write \`${shortWords(words)}\` in double quotes: YAML reads \`${words[0]}\` at the start as more than text`);
    return null;
  }
  if (words === "true" || words === "false") return words === "true";
  return NUMBER.test(words) ? Number(words) : words;
}

/** Without a comment at the end, which begins with ` #` outside quotes. */
function withoutComment(words: string): string {
  const found = /^((?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|(?!\s#).)*)(?:\s#.*)?$/.exec(words);
  return (found ? found[1]! : words).trim();
}

export function shortWords(words: string): string {
  const calm = words.trim().replaceAll("`", "'");
  return calm.length > 60 ? `${calm.slice(0, 60)}…` : calm;
}
