/** Labels as marks that lead to all that has them, and as the lines of a field that they are written in. */

import { href } from "../shell/router";

export function Labels({ labels, of = "experiments" }: { labels: string[]; of?: "experiments" | "models" }) {
  return (
    <>
      {labels.map((label) => (
        <a key={label} class="label" href={`${href(of)}?${new URLSearchParams({ label })}`} aria-label={`label ${label.slice(0, 200)}`}>{label}</a>
      ))}
    </>
  );
}

/** The labels of a text that has one a line. */
export function splitLabels(text: string): string[] {
  return text.split("\n").map((label) => label.trim()).filter(Boolean);
}
