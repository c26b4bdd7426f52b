/** The search box of the list of experiments, and its terms as chips. The typed text is the filter. */

import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../../api/client";
import { shortText } from "../../parts/format";
import { filterQuery, hasValue, isComplete, splitTerms, termAt, toggleValue, withoutTerm } from "./filter_text";
import { setQuery } from "../../shell/router";

const PAUSE_MS = 400;
const CHIP_CHARACTERS = 60;
const STATES = ["running", "queued", "paused", "finished", "canceled", "failed"];
const EXAMPLES: [string, string][] = [
  ["digits", "a part of the name"],
  ["state:running,failed", "one of these states"],
  ["metric:loss<0.3", "a metric of the best validation"],
  ["lr>0.01", "a hyperparameter, or a range that contains such a value"],
  ["label:baseline user:me", "every term must match"],
  ["-label:old", "must not match"],
  ['project:"two words" archived:all', "quotes around white space and commas"],
  ["best<0.1 progress>50% cost<5 id>100", "the searcher's metric, the progress, the cost in dollars, the id"],
  ["ended>7d submitted>=2026-11-01", "ended in the last week; submitted from this day on, in UTC"],
  ["forked-from:9", "a fork of this experiment"],
  ["metadata:data.version=3", "a value of the metadata"],
];

export function FilterBox({ text, error }: { text: string; error: Error | undefined }) {
  const id = useId();
  const [draft, setDraft] = useState(text);
  // A text that this box sent returns with the address, when more may be typed already.
  const sent = useRef(text);
  useLayoutEffect(() => {
    if (text !== sent.current) setDraft(text);
    sent.current = text;
  }, [text]);
  const apply = (next: string) => {
    sent.current = next.trim();
    setQuery(filterQuery(next));
  };
  const replace = (next: string) => {
    setDraft(next);
    apply(next);
  };
  useEffect(() => {
    if (draft.trim() === text || !isComplete(draft)) return undefined;
    const timer = setTimeout(() => apply(draft), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [draft]);
  const place = error instanceof ApiError ? error.details.find(({ path }) => path === "filter")?.column : undefined;
  const wrong = place == null ? undefined : termAt(text, place);
  const terms = splitTerms(text);
  return (
    <form class="filter-box" role="search" onSubmit={(event) => { event.preventDefault(); apply(draft); }}>
      <label for={id} class="hidden">Filter</label>
      <input id={id} type="search" class="wide" spellcheck={false} autocomplete="off" value={draft}
        placeholder="state:running metric:loss<0.3 lr>0.01 label:x user:me"
        aria-invalid={place != null} aria-describedby={place == null ? undefined : `${id}-error`}
        onInput={(event) => setDraft(event.currentTarget.value)} onChange={(event) => apply(event.currentTarget.value)} />
      {place != null && <p id={`${id}-error`} class="failure" role="alert">{error?.message}</p>}
      <div class="tools">
        <span class="states" role="group" aria-label="State">
          {STATES.map((state) => (
            <button key={state} type="button" aria-pressed={hasValue(text, "state", state)}
              onClick={() => replace(toggleValue(text, "state", state))}>{state}</button>
          ))}
          <button type="button" aria-pressed={hasValue(text, "failed-trials", "true")} onClick={() => replace(toggleValue(text, "failed-trials", "true"))}>with failed trials</button>
          <button type="button" aria-pressed={hasValue(text, "user", "me")} onClick={() => replace(toggleValue(text, "user", "me"))}>mine</button>
        </span>
        {terms.length > 0 && (
          <ul class="chips" aria-label="Terms of the filter">
            {terms.map((term) => (
              <li key={term.start}>
                <button type="button" class={term.start === wrong?.start ? "chip bad" : "chip"} title="Remove this term"
                  aria-label={`remove ${shortText(term.text, CHIP_CHARACTERS)}`} onClick={() => replace(withoutTerm(text, term))}>
                  {shortText(term.text, CHIP_CHARACTERS)} <span aria-hidden="true">×</span>
                </button>
              </li>
            ))}
          </ul>
        )}
        {terms.length > 0 && <button type="button" onClick={() => replace("")}>Clear filters</button>}
        <FilterHelp />
      </div>
    </form>
  );
}

function FilterHelp() {
  return (
    <details class="panel">
      <summary>Filter help</summary>
      <dl class="facts">
        {EXAMPLES.map(([example, meaning]) => [<dt key={example}><code>{example}</code></dt>, <dd key={meaning}>{meaning}</dd>])}
      </dl>
    </details>
  );
}
