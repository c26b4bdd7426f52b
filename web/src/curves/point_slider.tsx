/** The points of a chart for the keyboard, as a slider whose value is a point. */

import type { Pointed } from "./chart_tip";
import type { Curve } from "./curve";

interface Props {
  label: string;
  curves: readonly Curve[];
  pointed: Pointed | null;
  text: string;
  onKey: (event: KeyboardEvent) => void;
  onLeave: () => void;
}

export function PointSlider({ label, curves, pointed, text, onKey, onLeave }: Props) {
  const { points } = curves[pointed?.curve ?? -1] ?? curves.find(({ kind }) => kind === "points")!;
  const place = pointed ? points.findIndex(([x]) => x === pointed.x) : -1;
  return (
    <div class="point-slider" role="slider" tabIndex={0} aria-label={`points of ${label}`} aria-valuemin={0} aria-valuemax={points.length}
      aria-valuenow={place + 1} aria-valuetext={text || "no point: arrow keys choose a point, and Enter opens its trial"} onKeyDown={onKey} onBlur={onLeave} />
  );
}
