/** A button that copies a text. */

import { useEffect, useState } from "preact/hooks";
import { messageOf } from "./format";

/** Puts a text where it can be pasted from, which browsers allow on secure addresses alone. */
export function CopyButton({ text }: { text: string }) {
  const [told, setTold] = useState("");
  useEffect(() => setTold(""), [text]);
  async function copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      setTold("Copied");
    } catch (error) {
      setTold(`Not copied: ${messageOf(error)}`);
    }
  }
  if (!navigator.clipboard) return null;
  return (
    <span>
      <button type="button" onClick={() => void copy()}>Copy</button> <span class="quiet" role="status">{told}</span>
    </span>
  );
}
