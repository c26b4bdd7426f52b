/** The link to the comparison of selected experiments, with a key. */

import { useLayoutEffect } from "preact/hooks";
import { href } from "../shell/router";

export const COMPARE_KEY = "v";

/** The link, as soon as two experiments are selected. Elsewhere than in a text field, the key does the same. */
export function CompareLink({ ids }: { ids: readonly number[] }) {
  const address = ids.length > 1 ? `${href("compare")}?experiments=${ids.join(",")}` : null;
  // Before the next key: the key may follow the last selection at once.
  useLayoutEffect(() => {
    if (!address) return undefined;
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== COMPARE_KEY || event.ctrlKey || event.metaKey || event.altKey) return;
      if ((event.target as HTMLElement).closest("input:not([type=checkbox]), textarea, select, dialog, [contenteditable]")) return;
      location.hash = address;
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [address]);
  return address && <a class="button" href={address} aria-label="Compare" aria-keyshortcuts={COMPARE_KEY}>Compare <kbd>{COMPARE_KEY}</kbd></a>;
}
