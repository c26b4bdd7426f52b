/** A tip beside the part of an SVG chart that the pointer or the focus is on. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import "./chart.css";

interface Tip {
  lines: string[];
  left: number;
  top: number;
  width: number;
}

/** Shows the `data-tip` of the elements inside, whose first line is a heading. */
export function SvgTip({ children }: { children: ComponentChildren }) {
  const [tip, setTip] = useState<Tip | null>(null);
  function show({ currentTarget, target }: { currentTarget: EventTarget | null; target: EventTarget | null }): void {
    const part = (target as Element).closest?.("[data-tip]");
    const text = part?.getAttribute("data-tip");
    if (!part || !text) return setTip(null);
    const [box, own] = [part.getBoundingClientRect(), (currentTarget as HTMLElement).getBoundingClientRect()];
    const left = Math.min(own.width - 8, Math.max(8, box.left + box.width / 2 - own.left));
    setTip({ lines: text.split("\n"), left, top: box.top + box.height / 2 - own.top, width: own.width });
  }
  const [heading, ...lines] = tip?.lines ?? [];
  return (
    <div class="plot" onPointerMove={show} onPointerLeave={() => setTip(null)} onFocusIn={show} onFocusOut={() => setTip(null)}>
      {children}
      {tip && (
        <div class="tip" aria-hidden="true" style={{ top: `${tip.top}px`, ...(tip.left > tip.width / 2 ? { right: `${tip.width - tip.left + 14}px`, maxWidth: `${tip.left - 20}px` } : { left: `${tip.left + 14}px`, maxWidth: `${tip.width - tip.left - 20}px` }) }}>
          <strong>{heading}</strong>
          {lines.map((line) => <p key={line}>{line}</p>)}
        </div>
      )}
    </div>
  );
}
