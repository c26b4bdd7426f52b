/** A text that is being typed: a view that is drawn again meanwhile leaves it as it is. */

import { useEffect, useState } from "preact/hooks";

/** What an input needs so that `commit` gets its text once it was left or entered. */
export function useDraft(value: string, commit: (text: string) => void) {
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  return {
    value: draft,
    onInput: (event: Event) => setDraft((event.currentTarget as HTMLInputElement).value),
    onChange: (event: Event) => commit((event.currentTarget as HTMLInputElement).value),
  };
}
