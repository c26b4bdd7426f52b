/** The text of a filter of experiments, as terms. The cluster parses the text; the page only splits it. */

export interface Term {
  text: string;
  /** The place of the term in the text. */
  start: number;
}

/** The parameters of older links, which are terms of the filter now. */
export const FORMER = ["name", "label", "user", "workspace", "project", "metadata", "state", "has_failed_trials", "archived"] as const;

// White space in double quotes belongs to a term.
const TERM = /(?:"(?:[^"\\]|\\.)*"?|[^\s"])+/gu;
const PLAIN = /^[^\s",]+$/u;

export function splitTerms(text: string): Term[] {
  return [...text.matchAll(TERM)].map((found) => ({ text: found[0], start: found.index }));
}

/** The text without one of its terms. */
export function withoutTerm(text: string, dropped: Term): string {
  return splitTerms(text).filter(({ start }) => start !== dropped.start).map((term) => term.text).join(" ");
}

/** Return whether the text has a term such as `state:running`, alone or with other values. */
export function hasValue(text: string, key: string, value: string): boolean {
  return valuesOf(text, key).includes(value);
}

/** The text with a value of a key such as `state` added, or removed if the text has the value. */
export function toggleValue(text: string, key: string, value: string): string {
  const before = valuesOf(text, key);
  const after = before.includes(value) ? before.filter((one) => one !== value) : [...before, value];
  const rest = splitTerms(text).map((term) => term.text).filter((term) => !term.startsWith(`${key}:`));
  return [...rest, ...(after.length ? [`${key}:${after.join(",")}`] : [])].join(" ");
}

/** A value as a filter contains it: in double quotes if it has other characters. */
export function quoteValue(value: string): string {
  return PLAIN.test(value) ? value : JSON.stringify(value);
}

/** The filter of an address: its text, and the parameters of older links as terms. */
export function filterOf(query: URLSearchParams): string {
  const terms = FORMER.flatMap((name) => {
    const value = query.get(name)?.trim();
    if (!value) return [];
    if (name === "has_failed_trials") return [`failed-trials:${value}`];
    if (name === "state") return [`state:${value}`];
    if (name !== "metadata") return [`${name}:${quoteValue(value)}`];
    const equals = value.indexOf("=");
    return [`metadata:${value.slice(0, equals)}=${quoteValue(value.slice(equals + 1))}`];
  });
  return [query.get("filter") ?? "", ...terms].filter(Boolean).join(" ");
}

/** What an address needs for this filter. */
export function filterQuery(text: string): Record<string, string | null> {
  return { ...Object.fromEntries(FORMER.map((name) => [name, null])), filter: text.trim() || null };
}

/** The term at a character of the text, counted from 1 as the cluster counts. */
export function termAt(text: string, character: number): Term | undefined {
  const place = [...text].slice(0, character - 1).join("").length;
  return splitTerms(text).find((term) => place >= term.start && place <= term.start + term.text.length);
}

/** Return whether the end of the text can be sent while somebody types: words, and terms with a value. */
export function isComplete(text: string): boolean {
  const last = splitTerms(text).at(-1)?.text ?? "";
  if ((last.match(/"/g)?.length ?? 0) % 2) return false;
  return !/^-?(?:metric|hparam|metadata):[^=<>!]*$/u.test(last) && !/[:=<>!,-]$/u.test(last);
}

/** The workspace that the filter names, if it names a single one. */
export function workspaceOf(text: string): string {
  const [value = "", ...others] = valuesOf(text, "workspace");
  if (others.length) return "";
  return value.startsWith('"') ? String(JSON.parse(value)) : value;
}

function valuesOf(text: string, key: string): string[] {
  const terms = splitTerms(text).filter((term) => term.text.startsWith(`${key}:`));
  return terms.flatMap((term) => term.text.slice(key.length + 1).split(",")).filter(Boolean);
}
