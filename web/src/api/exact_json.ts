/**
 * JSON with exact integers. A number of JavaScript rounds integers beyond 2^53, so hyperparameters, configurations
 * and metadata would be shown, and sent back, with another value. Such integers are a BigInt there.
 */

// What users and their code have written; charts compute with the rest.
const FREE_FORM = new Set(["hparams", "config", "submitted_config", "metadata", "before", "after"]);
const LARGE = /(?:^|[[{:,\s])-?\d{16,}(?=[\],}\s]|$)/;
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const INTEGER = /^-?\d+$/;
// JSON has no such text: it escapes control characters, and the cluster stores none of these.
const MARK = "\u0001integer ";
const MARKED = /"\\u0001integer (-?\d+)"/g;

/** The value of an answer, with exact integers in its free-form parts. */
export function parseAnswer(text: string): unknown {
  return LARGE.test(text) ? roundOutside(parseExactly(text)) : JSON.parse(text);
}

/** The value of a text of JSON, with a BigInt for each integer that a number would round. */
export function parseExactly(text: string): unknown {
  if (!LARGE.test(text)) return JSON.parse(text);
  const marked = text.replace(TOKEN, (token) =>
    INTEGER.test(token) && !Number.isSafeInteger(Number(token)) ? JSON.stringify(MARK + token) : token);
  return JSON.parse(marked, (_key, value: unknown) =>
    typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value);
}

/** The text of a value, with each BigInt as an integer. */
export function exactText(value: unknown, indent?: number): string {
  // A replacer gets what toJSON returned; the holder has the BigInt itself.
  function mark(this: unknown, key: string, part: unknown): unknown {
    const held = (this as Record<string, unknown>)[key];
    return typeof held === "bigint" ? `${MARK}${held}` : part;
  }
  const text = JSON.stringify(value, mark, indent) as string | undefined;
  return text?.replace(MARKED, "$1") ?? "null";
}

// JSON.stringify throws for a BigInt without this. Texts that are only compared need no exact form.
Object.defineProperty(BigInt.prototype, "toJSON", {
  configurable: true,
  value(this: bigint) {
    return this.toString();
  },
});

function roundOutside(value: unknown): unknown {
  if (typeof value === "bigint") return Number(value);
  if (Array.isArray(value)) return value.map(roundOutside);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, FREE_FORM.has(name) ? part : roundOutside(part)]));
}
