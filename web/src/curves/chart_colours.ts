/** The page's colours as plain values, which canvases and saved pictures need. */

export interface ChartColours {
  isDark: boolean;
  text: string;
  quiet: string;
  line: string;
  back: string;
}

/** The colours of the present theme. */
export function readColours(): ChartColours {
  const style = getComputedStyle(document.documentElement);
  const isDark = isDarkScheme(style.colorScheme);
  const read = (name: string) => themeColour(style.getPropertyValue(name), isDark);
  return { isDark, text: read("--text"), quiet: read("--quiet"), line: read("--line"), back: read("--back") };
}

/** One colour of a `light-dark(#ffffff, #000000)`; any other text as given. */
export function themeColour(text: string, isDark: boolean): string {
  const pair = /^light-dark\(([^,]+),([^,]+)\)$/.exec(text.trim());
  return (pair ? pair[isDark ? 2 : 1]! : text).trim();
}

/** Whether a page with this `color-scheme` is dark; a page with both schemes follows the machine. */
function isDarkScheme(scheme: string): boolean {
  const isEither = scheme.includes("light") && scheme.includes("dark");
  return isEither ? matchMedia("(prefers-color-scheme: dark)").matches : scheme.includes("dark");
}
