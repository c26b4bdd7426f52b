/** Plain values as YAML, to be read and edited by people. */

import { exactText } from "../../api/exact_json";

const PLAIN = /^[A-Za-z_][\w ./-]*$/;
// Words that YAML reads as something else than text.
const WORDS = /^(true|false|yes|no|on|off|null|y|n|nan|inf)$/i;

/** The value as YAML, which a parser reads as the same value again. */
export function toYaml(value: unknown): string {
  return `${lines(value, "").join("\n")}\n`;
}

function lines(value: unknown, indent: string): string[] {
  if (Array.isArray(value) && value.length) {
    return value.flatMap((item) => {
      const [first = "", ...rest] = lines(item, `${indent}  `);
      return [`${indent}- ${first.trimStart()}`, ...rest];
    });
  }
  if (isMapping(value) && Object.keys(value).length) {
    return Object.entries(value).flatMap(([name, part]) => {
      const head = `${indent}${scalar(name)}:`;
      const isNested = (Array.isArray(part) && part.length > 0) || (isMapping(part) && Object.keys(part).length > 0);
      return isNested ? [head, ...lines(part, `${indent}  `)] : [`${head} ${scalar(part)}`];
    });
  }
  return [indent + scalar(value)];
}

function scalar(value: unknown): string {
  if (typeof value !== "string") {
    // 1e-05 is text to YAML 1.1, which asks for a dot.
    const text = exactText(value);
    return typeof value === "number" ? text.replace(/^(-?\d+)e/, "$1.0e") : text;
  }
  return scalarText(value);
}

/** A text as YAML, in quotes if YAML would read it as something else or if it must be quoted. */
export function scalarText(text: string, isQuoted = false): string {
  const isPlain = !isQuoted && PLAIN.test(text) && !isWord(text) && !text.endsWith(" ");
  return isPlain ? text : JSON.stringify(text);
}

/** Whether YAML reads a word as something else than text. */
export function isWord(text: string): boolean {
  return WORDS.test(text);
}

function isMapping(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
