/**
 * The places of values in a text of YAML, so that a form can change a value and leave the rest of the text as it is.
 *
 * Only the common forms are read: maps in block style, maps in braces on a line, and scalars on a line. Other values are
 * named with their form, and the form does not change them. The cluster reads the text; this module only finds places.
 */

export interface Scalar {
  kind: "scalar";
  line: number;
  /** The characters of the value in the text, from `from` up to `to`; both are equal for an absent value. */
  from: number;
  to: number;
  /** The value without quotes; "" for an absent value. */
  value: string;
  isQuoted: boolean;
}

export interface Mapping {
  kind: "map";
  line: number;
  entries: Map<string, Place>;
}

/** A value that is not read. */
export interface Unread {
  kind: "unread";
  line: number;
  /** The form of the value, such as `a list`. */
  form: string;
}

export type Place = Scalar | Mapping | Unread;

/** A text whose lines cannot be told apart. */
export class UnreadableYaml extends Error {}

interface Line {
  number: number;
  /** The character of the text at which the content begins. */
  from: number;
  indent: number;
  /** The content, without a comment at its end. */
  content: string;
}

const KEY = /^(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'|([^\s"'#&*!|>%@`{}[\],?:-][^#{}[\],:]*?|-[^\s#{}[\],:][^#{}[\],:]*?))\s*:(?=\s|$)/;
const FORMS: Record<string, string> = {
  "[": "a list", "|": "a text of several lines", ">": "a text of several lines", "&": "an anchor", "*": "an alias", "!": "a tag",
  "@": "a reserved sign", "`": "a reserved sign", "%": "a reserved sign",
};

/** The top-level map of a text. Throws UnreadableYaml for a text that is no map in block style. */
export function readPlaces(text: string): Mapping {
  const lines = splitLines(text);
  const first = lines[0];
  const root: Mapping = { kind: "map", line: 1, entries: new Map() };
  if (first === undefined) return root;
  const end = readBlock(lines, 0, first.indent, root);
  const rest = lines[end];
  if (rest !== undefined) throw new UnreadableYaml(`line ${rest.number} is indented less than line ${first.number}`);
  return root;
}

function splitLines(text: string): Line[] {
  const lines: Line[] = [];
  let from = 0;
  text.split("\n").forEach((whole, place) => {
    const indent = whole.length - whole.trimStart().length;
    const content = withoutComment(whole.slice(indent)).trimEnd();
    if (whole.slice(0, indent).includes("\t") && content) throw new UnreadableYaml(`line ${place + 1} is indented with a tab`);
    if (content) lines.push({ number: place + 1, from: from + indent, indent, content });
    from += whole.length + 1;
  });
  if (lines[0] && /^(---|%)/.test(lines[0].content)) throw new UnreadableYaml(`line ${lines[0].number} begins a document`);
  return lines;
}

/** The content of a line up to a comment, which begins with `#` after white space and outside of quotes. */
function withoutComment(content: string): string {
  let quote = "";
  for (let place = 0; place < content.length; place += 1) {
    const sign = content[place]!;
    if (quote === '"' && sign === "\\") place += 1;
    else if (sign === quote) quote = "";
    else if (!quote && (sign === '"' || sign === "'") && /^$|[\s:,[{]$/.test(content.slice(0, place))) quote = sign;
    else if (!quote && sign === "#" && (place === 0 || /\s/.test(content[place - 1]!))) return content.slice(0, place);
  }
  return content;
}

/** Read the entries of a map from the line at an index; returns the index of the first line after the map. */
function readBlock(lines: Line[], index: number, indent: number, map: Mapping): number {
  while (index < lines.length) {
    const line = lines[index]!;
    if (line.indent < indent) return index;
    if (line.indent > indent) throw new UnreadableYaml(`line ${line.number} is indented more than the lines around it`);
    const found = KEY.exec(line.content);
    if (!found) throw new UnreadableYaml(`line ${line.number} is no \`key: value\``);
    const key = keyOf(found);
    if (key === "<<" || map.entries.has(key)) throw new UnreadableYaml(`line ${line.number} sets ${key} in a way that the form does not read`);
    const [place, next] = readEntry(lines, index, found[0].length);
    map.entries.set(key, place);
    index = next;
  }
  return index;
}

/** Read the value after a key of `size` characters; returns the value and the index of the line after the value. */
function readEntry(lines: Line[], index: number, size: number): [Place, number] {
  const line = lines[index]!;
  const rest = line.content.slice(size);
  const space = rest.length - rest.trimStart().length;
  const value = rest.slice(space);
  const from = line.from + size + space;
  const end = endOfBlock(lines, index);
  const next = lines[index + 1];
  if (!value) {
    if (next && next.content.startsWith("-") && /^-(\s|$)/.test(next.content) && next.indent >= line.indent) {
      return [unread(line, "a list"), endOfList(lines, index)];
    }
    if (end === index + 1) return [{ kind: "scalar", line: line.number, from: line.from + size, to: line.from + size, value: "", isQuoted: false }, end];
    if (!KEY.test(next!.content)) return [unread(line, "a value on the next line"), end];
    const map: Mapping = { kind: "map", line: line.number, entries: new Map() };
    return [map, readBlock(lines, index + 1, next!.indent, map)];
  }
  if (end > index + 1 && value[0] !== "{" && value[0] !== "[") return [unread(line, FORMS[value[0]!] ?? "a value over several lines"), end];
  if (end > index + 1) return [unread(line, "a value over several lines"), end];
  return [readValue(line, value, from), end];
}

/** The index after the lines that are indented more than the line at an index. */
function endOfBlock(lines: Line[], index: number): number {
  let end = index + 1;
  while (end < lines.length && lines[end]!.indent > lines[index]!.indent) end += 1;
  return end;
}

/** The index after the list below a key, whose items may stand at the indent of the key. */
function endOfList(lines: Line[], index: number): number {
  const { indent } = lines[index]!;
  let end = index + 1;
  while (end < lines.length && (lines[end]!.indent > indent || (lines[end]!.indent === indent && /^-(\s|$)/.test(lines[end]!.content)))) end += 1;
  return end;
}

function unread(line: Line, form: string): Unread {
  return { kind: "unread", line: line.number, form };
}

/** A value that begins and ends on a line. */
function readValue(line: Line, value: string, from: number): Place {
  if (value[0] === "{") return readBraces(line, value, from);
  const form = FORMS[value[0]!];
  if (form) return unread(line, form);
  const text = unquote(value);
  if (text === null) return unread(line, "a value over several lines");
  return { kind: "scalar", line: line.number, from, to: from + value.length, value: text, isQuoted: /^["']/.test(value) };
}

/** A map in braces whose values are scalars or such maps. */
function readBraces(line: Line, value: string, from: number): Place {
  const map: Mapping = { kind: "map", line: line.number, entries: new Map() };
  if (!value.endsWith("}")) return unread(line, "a map in braces over several lines");
  const parts = splitParts(value.slice(1, -1));
  if (parts === null) return unread(line, "a map in braces that the form does not read");
  let place = from + 1;
  for (const part of parts) {
    const content = part.trim();
    const begin = place + (part.length - part.trimStart().length);
    place += part.length + 1;
    if (!content && parts.length === 1) break;
    const found = KEY.exec(content);
    if (!found || map.entries.has(keyOf(found))) return unread(line, "a map in braces that the form does not read");
    const rest = content.slice(found[0].length);
    const inner = rest.trimStart();
    const innerFrom = begin + found[0].length + (rest.length - inner.length);
    map.entries.set(keyOf(found), inner
      ? readValue(line, inner, innerFrom)
      : { kind: "scalar", line: line.number, from: innerFrom, to: innerFrom, value: "", isQuoted: false });
  }
  return map;
}

/** The parts between the commas outside of quotes and brackets; null if brackets or quotes do not end. */
function splitParts(text: string): string[] | null {
  const parts: string[] = [];
  let [depth, quote, begin] = [0, "", 0];
  for (let place = 0; place < text.length; place += 1) {
    const sign = text[place]!;
    if (quote === '"' && sign === "\\") place += 1;
    else if (sign === quote) quote = "";
    else if (!quote && (sign === '"' || sign === "'")) quote = sign;
    else if (!quote && "{[".includes(sign)) depth += 1;
    else if (!quote && "}]".includes(sign)) depth -= 1;
    else if (!quote && depth === 0 && sign === ",") {
      parts.push(text.slice(begin, place));
      begin = place + 1;
    }
    if (depth < 0) return null;
  }
  return depth === 0 && !quote ? [...parts, text.slice(begin)] : null;
}

function keyOf(found: RegExpExecArray): string {
  return (found[1] !== undefined ? unquote(`"${found[1]}"`) : found[2]?.replaceAll("''", "'")) ?? found[3] ?? "";
}

/** The text of a scalar without quotes; null if the quotes do not end with the value. */
function unquote(value: string): string | null {
  if (value[0] === '"') {
    try {
      return String(JSON.parse(value));
    } catch {
      return null;
    }
  }
  if (value[0] !== "'") return value;
  return /^'(?:[^']|'')*'$/.test(value) ? value.slice(1, -1).replaceAll("''", "'") : null;
}
