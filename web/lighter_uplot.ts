import type { Plugin } from "vite";

/** A change of uPlot's text: the text or pattern, its replacement, and how often the text must occur. */
type Edit = [from: string | RegExp, to: string, times: number];

/**
 * The parts of uPlot that the page never reaches. `chart_options.ts` draws lines, steps and points of
 * aligned data, without a legend, and computes the ticks of every axis itself.
 */
const EDITS: Edit[] = [
  // Functions for users of the library: a bundler keeps them, because they are properties of a function.
  [/^uPlot\.(?:fmtNum|rangeNum|rangeLog|rangeAsinh) = \w+;$/gm, "", 4],
  [/^\tuPlot\.(?:join|fmtDate|tzDate) +?= \w+;$/gm, "", 3],
  [/^\t\(paths\.(?:bars|spline) +?= \w+\);$/gm, "", 2],
  // Data of `mode: 2`, whose series have different places.
  [/^\tconst mode = self\.mode;$/gm, "", 1],
  [/\bmode == 1\b/g, "true", 16],
  [/\bmode == 2\b/g, "false", 16],
  // The legend.
  [/^\tconst showLegend = legend\.show;$/gm, "", 1],
  [/\bshowLegend\b/g, "false", 9],
  // Axes of times, and the ticks of other axes.
  [/^\tconst _(?:fmtDate|timeAxisSplits|timeAxisVals|timeSeriesVal) *= .*;$/gm, "", 4],
  [/^\t+let isTime = .*;$/gm, "", 3],
  [/\bisTime\b/g, "false", 7],
  [/axis\.splits \|\| \(.*\)\);$/gm, "axis.splits);", 1],
  [/axis\.filter \|\| \(.*\)\);$/gm, "axis.filter);", 1],
];

/** Leave parts of uPlot out. A version with other text ends the build with an error. */
export function lightenUplot(): Plugin {
  return {
    name: "lighten-uplot",
    apply: "build",
    transform(code, id) {
      if (!id.endsWith("uPlot.esm.js")) return null;
      for (const [from, to, times] of EDITS) {
        const found = code.match(from)?.length ?? 0;
        if (found !== times) this.error(`uPlot has ${from} ${found} times instead of ${times}: correct lighter_uplot.ts for this version`);
        code = code.replaceAll(from, to);
      }
      return { code, map: null };
    },
  };
}
