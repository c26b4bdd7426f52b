/** Links and lines in the texts of reports. */

// Views of the page, the web and addresses of mail; never a script.
const SAFE_LINK = /^(?:https?:\/\/|mailto:|#\/)/i;

/** The address of a link; null for one that the page does not follow. */
export function linkOf(to: string): string | null {
  return SAFE_LINK.test(to) ? to : null;
}

/** The text with other lines in place of those of a block, which begin at `line`. Blocks inside lists and quotes keep what is before each line. */
export function replaceLines(text: string, line: number, former: string, next: string): string {
  const lines = text.split("\n");
  const [first = "", count] = [lines[line - 1], former.split("\n").length];
  const indent = first.slice(0, first.indexOf(former.split("\n")[0]!));
  return [...lines.slice(0, line - 1), ...next.split("\n").map((one) => indent + one), ...lines.slice(line - 1 + count)].join("\n");
}
