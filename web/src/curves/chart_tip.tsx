/** The tip beside the point of a chart that the pointer is on. */

import { durationText, momentText, numberText } from "../parts/format";
import type { Fact } from "./curve";
import type { XUnit } from "./x_axis";

export interface Pointed {
  /** The number of the curve. */
  curve: number;
  x: number;
  y: number;
  xUnit: XUnit;
  label: string;
  href: string | undefined;
  facts: readonly Fact[];
  /** The point and the width of the chart, in pixels. */
  left: number;
  top: number;
  width: number;
  /** When the pointer came to the point, in epoch ms. */
  sinceMs: number;
}

const FACTS_MAX = 10;
const FACT_CHARACTERS_MAX = 40;

interface Props {
  pointed: Pointed;
  yLabel: string;
  xTitle: string;
}

export function ChartTip({ pointed, yLabel, xTitle }: Props) {
  const { x, y, xUnit, label, href, facts, left, top, width } = pointed;
  const isRight = left > width / 2;
  const side = isRight ? { right: `${width - left + 12}px` } : { left: `${left + 12}px` };
  return (
    <>
      <div class="point" style={{ left: `${left}px`, top: `${top}px` }} aria-hidden="true" />
      <div class="tip" aria-hidden="true" style={{ top: `${top}px`, maxWidth: `${Math.max(140, (isRight ? left : width - left) - 20)}px`, ...side }}>
        <strong>{label}</strong>
        <dl>
          <dt>{xTitle}</dt><dd>{placeText(x, xUnit)}</dd>
          <dt>{yLabel}</dt><dd>{numberText(y)}</dd>
          {facts.slice(0, FACTS_MAX).map(([name, text]) => (
            <><dt>{name}</dt><dd>{text.length > FACT_CHARACTERS_MAX ? `${text.slice(0, FACT_CHARACTERS_MAX)}…` : text}</dd></>
          ))}
        </dl>
        {facts.length > FACTS_MAX && <p class="quiet">and {facts.length - FACTS_MAX} more</p>}
        {href && <p class="quiet">Click to open</p>}
      </div>
    </>
  );
}

/** The content of a tip as a sentence. */
export function pointedText({ x, y, xUnit, label, facts }: Pointed, yLabel: string, xTitle: string): string {
  return [label, `${yLabel} ${numberText(y)}`, `${xTitle} ${placeText(x, xUnit)}`, ...facts.slice(0, FACTS_MAX).map(([name, text]) => `${name} ${text}`)].join(", ");
}

/** A place of a horizontal axis as text. */
export function placeText(x: number, unit: XUnit): string {
  if (unit === "time") return momentText(1000 * x);
  return unit === "elapsed" ? durationText(1000 * x) : numberText(x);
}
