/** Metadata: an object of JSON, as it is shown and as the text of a field. */

import { exactText, parseExactly } from "../api/exact_json";

export function Metadata({ of: metadata }: { of: object }) {
  if (Object.keys(metadata).length === 0) return null;
  return (
    <details open>
      <summary>Metadata</summary>
      <pre tabIndex={0}>{metadataText(metadata)}</pre>
    </details>
  );
}

export function metadataText(metadata: object): string {
  return exactText(metadata, 2);
}

/** The metadata of a text, nothing for an empty one; an Error says why it is none. */
export function parseMetadata(text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = text.trim() === "" ? {} : parseExactly(text);
  } catch (error) {
    throw new Error(`the metadata is not JSON: ${(error as Error).message}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error('the metadata must be an object, like {"data": {"version": 3}}');
  }
  return value as Record<string, unknown>;
}
