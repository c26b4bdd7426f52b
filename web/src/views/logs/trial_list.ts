/** The trials that narrow the logs of an experiment. */

/** The most trials of a request; the server has the same limit. */
export const TRIALS_MAX = 100;

/** The ids of a text such as `1, 2`, without repetitions; undefined if the text is no list of at most TRIALS_MAX ids. */
export function parseTrials(text: string): number[] | undefined {
  const words = text.split(/[\s,]+/).filter(Boolean);
  if (words.some((word) => !/^[1-9]\d{0,11}$/.test(word))) return undefined;
  const trials = [...new Set(words.map(Number))];
  return trials.length > TRIALS_MAX ? undefined : trials;
}
