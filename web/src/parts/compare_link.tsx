/** The link to the comparison of selected experiments, with a key. */

import { href } from "../shell/router";
import { useKeyDown } from "./use_key_down";

export const COMPARE_KEY = "v";

/** The link, as soon as two experiments are selected. Elsewhere than in a text field, the key does the same. */
export function CompareLink({ ids }: { ids: readonly number[] }) {
  const address = ids.length > 1 ? `${href("compare")}?experiments=${ids.join(",")}` : null;
  useKeyDown(address === null ? null : (event) => {
    if (event.key !== COMPARE_KEY || event.ctrlKey || event.metaKey || event.altKey) return;
    if ((event.target as HTMLElement).closest("input:not([type=checkbox]), textarea, select, dialog, [contenteditable]")) return;
    location.hash = address;
  });
  return address && <a class="button" href={address} aria-label="Compare" aria-keyshortcuts={COMPARE_KEY}>Compare <kbd>{COMPARE_KEY}</kbd></a>;
}
