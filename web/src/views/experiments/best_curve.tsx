/** The curve of an experiment's best trial in a row of the list. */

import { createContext } from "preact";
import { useContext, useRef } from "preact/hooks";
import { get, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { numberText } from "../../parts/format";

type Points = Schemas["BestCurve"]["points"];

/** The curves by experiment, as far as they are loaded. */
export const CurvesContext = createContext<ReadonlyMap<number, Points>>(new Map());

const WIDTH = 96;
const HEIGHT = 20;
/** As many experiments as the cluster answers in a request. */
const CURVES_MAX = 100;

export function BestCurve({ one }: { one: Schemas["Experiment"] }) {
  const points = useContext(CurvesContext).get(one.id!);
  if (!points || points.length < 2) return <span class="quiet">–</span>;
  const [first, last] = [points[0]!, points[points.length - 1]!];
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} role="img"
      aria-label={`${one.metric} from ${numberText(first[1])} to ${numberText(last[1])}`}>
      <path d={linePath(points)} />
    </svg>
  );
}

/** The path of a line through the points, in the box of the picture. Equal values are a level line. */
export function linePath(points: readonly (readonly [number, number])[]): string {
  const [steps, values] = [points.map(([step]) => step), points.map(([, value]) => value)];
  const x = scaleOf(steps, 1, WIDTH - 1);
  const y = scaleOf(values, HEIGHT - 2, 2);
  return points.map(([step, value], n) => `${n ? "L" : "M"}${x(step)} ${y(value)}`).join("");
}

/** Load the curves of the shown experiments. Curves stay while changed ones are loaded. */
export function useBestCurves(shown: readonly Schemas["Experiment"][], isWanted: boolean): ReadonlyMap<number, Points> {
  const kept = useRef<ReadonlyMap<number, Points>>(new Map());
  const measured = isWanted ? shown.filter((one) => one.best_trial_id != null).slice(0, CURVES_MAX) : [];
  const { value } = useLive(
    `best curves ${measured.map((one) => `${one.id}/${one.best_trial_id}/${one.best_metric}`).join()}`,
    async (signal) => {
      if (measured.length === 0) return { items: [] };
      return get("/api/v1/experiment-curves", { query: { experiments: measured.map(({ id }) => id).join(","), points: 24 }, signal });
    },
    () => "still",
  );
  if (value) kept.current = new Map([...kept.current, ...value.items.map((one): [number, Points] => [one.experiment_id, one.points])]);
  return kept.current;
}

function scaleOf(values: readonly number[], from: number, to: number): (value: number) => number {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const size = most - least;
  return (value) => Math.round(10 * (size > 0 ? from + ((value - least) / size) * (to - from) : (from + to) / 2)) / 10;
}
