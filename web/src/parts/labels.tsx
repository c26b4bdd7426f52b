/** Labels as marks, and as the lines of a field that they are written in. */

export function Labels({ labels }: { labels: string[] }) {
  return <>{labels.map((label) => <span key={label} class="label">{label}</span>)}</>;
}

/** The labels of a text that has one a line. */
export function splitLabels(text: string): string[] {
  return text.split("\n").map((label) => label.trim()).filter(Boolean);
}
