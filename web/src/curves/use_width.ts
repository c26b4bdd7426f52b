/** The width of an element, for charts that are drawn in its pixels. */

import { useLayoutEffect, useState } from "preact/hooks";

/** The width in pixels, and the reference for the element; `guess` before it is measured. */
export function useWidth(guess: number): [width: number, ref: (element: HTMLElement | null) => void] {
  const [element, setElement] = useState<HTMLElement | null>(null);
  const [width, setWidth] = useState(guess);
  useLayoutEffect(() => {
    if (!element) return;
    const measure = () => element.clientWidth > 0 && setWidth(element.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [element]);
  return [width, setElement];
}
