/** A text that is being typed: a view that is drawn again meanwhile leaves it as it is. */

import { useEffect, useLayoutEffect, useState } from "preact/hooks";

const PAUSE_MS = 400;

/**
 * What an input needs so that `commit` gets its text once it was left or entered, or, if it is
 * `eager`, after a pause in the typing.
 */
export function useDraft(value: string, commit: (text: string) => void, eager = false) {
  const [draft, setDraft] = useState(value);
  // At once: later it would take away what was typed meanwhile.
  useLayoutEffect(() => setDraft(value), [value]);
  useEffect(() => {
    if (!eager || draft === value) return undefined;
    const timer = setTimeout(() => commit(draft), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [eager, draft]);
  return {
    value: draft,
    onInput: (event: Event) => setDraft((event.currentTarget as HTMLInputElement).value),
    onChange: (event: Event) => commit((event.currentTarget as HTMLInputElement).value),
  };
}
