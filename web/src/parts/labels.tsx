/** Labels as marks that lead to all that has them, and as the lines of a field that they are written in. */

import { href } from "../shell/router";
import { shortText } from "./format";

// Of a label, where it is shown: more is no help to those who see it, and long to hear.
const SHOWN_MAX = 200;

export function Labels({ labels, of = "experiments" }: { labels: string[]; of?: "experiments" | "commands" | "models" }) {
  if (labels.length === 0) return null;
  return (
    <span role="list" aria-label="labels">
      {labels.map((label) => (
        <span key={label} role="listitem">
          <a class="label" title={label.slice(0, 1000)} href={`${href(of)}?${new URLSearchParams({ label })}`}>{shortText(label, SHOWN_MAX)}</a>
        </span>
      ))}
    </span>
  );
}

/** The labels of a text that has one a line. */
export function splitLabels(text: string): string[] {
  return text.split("\n").map((label) => label.trim()).filter(Boolean);
}
