/** A part of a view that is drawn in a task of its own, after the parts before it. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { doInTurn } from "./in_turn";

interface Props {
  /** The height in pixels that is kept free until the part is drawn. */
  height: number;
  children: () => ComponentChildren;
}

export function InTurnPart({ height, children }: Props) {
  const [isDrawn, setDrawn] = useState(false);
  useEffect(() => doInTurn(() => setDrawn(true)), []);
  return isDrawn ? <>{children()}</> : <div style={{ minHeight: `${height}px` }} />;
}
