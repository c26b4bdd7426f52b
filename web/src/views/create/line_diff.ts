/** The lines in which two texts differ, with some lines around each change. */

export interface DiffLine {
  /** "+" for an added line, "-" for a removed line, " " for a line of both, "@" for left-out lines. */
  sign: "+" | "-" | " " | "@";
  text: string;
}

/** The lines around a change. */
const AROUND = 3;
/** Beyond this number of compared pairs, all lines between the first and the last change are shown as changed. */
const PAIRS_MAX = 4_000_000;

/** The difference of two texts, line by line; [] for equal texts. */
export function diffLines(before: string, after: string): DiffLine[] {
  if (before === after) return [];
  const [former, latter] = [splitText(before), splitText(after)];
  let start = 0;
  while (start < former.length && start < latter.length && former[start] === latter[start]) start += 1;
  let end = 0;
  while (end < former.length - start && end < latter.length - start && former.at(-1 - end) === latter.at(-1 - end)) end += 1;
  const same = (text: string): DiffLine => ({ sign: " ", text });
  return shorten([
    ...former.slice(0, start).map(same),
    ...diffMiddle(former.slice(start, former.length - end), latter.slice(start, latter.length - end)),
    ...former.slice(former.length - end).map(same),
  ]);
}

function splitText(text: string): string[] {
  const lines = text.split("\n");
  return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
}

/** The difference by the longest common sequence of lines. */
function diffMiddle(former: string[], latter: string[]): DiffLine[] {
  const removed = (text: string): DiffLine => ({ sign: "-", text });
  const added = (text: string): DiffLine => ({ sign: "+", text });
  if (former.length * latter.length > PAIRS_MAX) return [...former.map(removed), ...latter.map(added)];
  const width = latter.length + 1;
  // The length of the longest common sequence of the rests of both texts.
  const lengths = new Uint32Array((former.length + 1) * width);
  for (let i = former.length - 1; i >= 0; i -= 1) {
    for (let j = latter.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] = former[i] === latter[j]
        ? lengths[(i + 1) * width + j + 1]! + 1
        : Math.max(lengths[(i + 1) * width + j]!, lengths[i * width + j + 1]!);
    }
  }
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < former.length && j < latter.length) {
    if (former[i] === latter[j]) {
      lines.push({ sign: " ", text: former[i]! });
      i += 1;
      j += 1;
    } else if (lengths[(i + 1) * width + j]! >= lengths[i * width + j + 1]!) lines.push(removed(former[i++]!));
    else lines.push(added(latter[j++]!));
  }
  return [...lines, ...former.slice(i).map(removed), ...latter.slice(j).map(added)];
}

/** The lines without those far from a change, in whose place a line says how many are left out. */
function shorten(lines: DiffLine[]): DiffLine[] {
  const isNear = new Uint8Array(lines.length);
  lines.forEach(({ sign }, place) => {
    if (sign !== " ") isNear.fill(1, Math.max(0, place - AROUND), place + AROUND + 1);
  });
  const shown: DiffLine[] = [];
  let leftOut = 0;
  const flush = () => {
    if (leftOut) shown.push({ sign: "@", text: leftOut === 1 ? "1 equal line" : `${leftOut} equal lines` });
    leftOut = 0;
  };
  lines.forEach((line, place) => {
    if (!isNear[place]) {
      leftOut += 1;
      return;
    }
    flush();
    shown.push(line);
  });
  flush();
  return shown;
}
