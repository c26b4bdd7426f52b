/** Keys of a part of the page. */

import { useLayoutEffect, useRef } from "preact/hooks";

/**
 * Call `onKey` for each pressed key while the part is shown; null for no key.
 *
 * The listener is bound before the next key: after the paint, a key that follows at once would be lost.
 */
export function useKeyDown(onKey: ((event: KeyboardEvent) => void) | null): void {
  const latest = useRef(onKey);
  latest.current = onKey;
  useLayoutEffect(() => {
    const listener = (event: KeyboardEvent) => latest.current?.(event);
    document.addEventListener("keydown", listener);
    return () => document.removeEventListener("keydown", listener);
  }, []);
}
