/** A name in a block that the experiments of the chart do not have. */

import { Failure } from "../../parts/status";

export function UnknownName({ name, value, expected }: { name: string; value: string; expected: readonly string[] }) {
  return <Failure error={new Error(`\`${name}\` is \`${value}\`, which this chart does not have; expected one of ${expected.join(", ")}`)} />;
}
