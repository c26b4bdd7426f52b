/** The hyperparameters and the search of a configuration as fields of a form, beside its YAML. */

import { readPlaces, UnreadableYaml, type Place, type Scalar } from "./yaml_places";
import { isWord, scalarText } from "./yaml";

export const SECTIONS = [["hyperparameters", "Hyperparameters"], ["searcher", "Search"]] as const;

export interface ConfigField {
  /** The names from the section to the value: `optimizer.lr`. */
  name: string;
  line: number;
  /** The value to edit, or what stands in its place. */
  value: string;
  /** The place of the value in the text; null for a value that the form cannot change. */
  place: Scalar | null;
  /** Why the form cannot change the value, "" otherwise. */
  reason: string;
}

export interface FieldSection {
  name: string;
  title: string;
  fields: ConfigField[];
  /** Why the section has no fields, "" otherwise. */
  reason: string;
}

const NUMBER = /^[-+]?(\d[\d_]*)?\.?\d+([eE][-+]?\d+)?$|^[-+]?\d+\.$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$/;

/** The fields of both sections, as they stand in the text. */
export function findFields(text: string): FieldSection[] {
  let root;
  try {
    root = readPlaces(text);
  } catch (error) {
    if (!(error instanceof UnreadableYaml)) throw error;
    const reason = `The form cannot read the text: ${error.message}. Edit the YAML.`;
    return SECTIONS.map(([name, title]) => ({ name, title, fields: [], reason }));
  }
  return SECTIONS.map(([name, title]) => {
    const place = root.entries.get(name);
    if (place === undefined || (place.kind === "scalar" && !place.value)) return { name, title, fields: [], reason: "The configuration sets none." };
    if (place.kind !== "map") return { name, title, fields: [], reason: `The form cannot change ${formOf(place)} on line ${place.line}. Edit the YAML.` };
    const fields = fieldsOf("", place);
    return { name, title, fields, reason: fields.length ? "" : "The configuration sets none." };
  });
}

/** The text with another value in the place of a field. */
export function changeField(text: string, place: Scalar, value: string): string {
  // An absent value is written after the space that follows the colon, if any.
  const isAbsent = place.from === place.to && text[place.from] === " ";
  const before = text.slice(0, place.from + (isAbsent ? 1 : 0));
  const written = valueText(place, value);
  const space = written && !/[\s{,]$/.test(before) ? " " : "";
  return before + space + written + text.slice(Math.max(place.to, before.length));
}

/** A value as YAML. Numbers and words such as true are written as they are, unless the former value was such a text in quotes. */
function valueText(former: Scalar, value: string): string {
  const trimmed = value.trim();
  if (!trimmed) return "";
  const isText = former.isQuoted && (NUMBER.test(former.value) || isWord(former.value));
  return !isText && (NUMBER.test(trimmed) || isWord(trimmed)) ? trimmed : scalarText(isText ? value : trimmed, isText);
}

function fieldsOf(prefix: string, place: Place): ConfigField[] {
  if (place.kind === "map") {
    const entries = [...place.entries];
    return entries.flatMap(([name, part]) => fieldsOf(prefix ? `${prefix}.${name}` : name, part));
  }
  if (place.kind === "scalar") return [{ name: prefix, line: place.line, value: place.value, place, reason: "" }];
  return [{ name: prefix, line: place.line, value: formOf(place), place: null, reason: `${formOf(place)}: edit line ${place.line} of the YAML` }];
}

function formOf(place: Place): string {
  return place.kind === "unread" ? place.form : "a single value";
}
