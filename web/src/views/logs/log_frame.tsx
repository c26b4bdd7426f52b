/** The frame of a log view: filters, switches, the box of the lines, and the height of the window. */

import type { ComponentChildren } from "preact";
import { ClearButton, NumberField, SearchField } from "../../parts/filter_fields";
import { useKeyDown } from "../../parts/use_key_down";
import { setQuery, useRoute } from "../../shell/router";
import { FILTERS, LEVELS } from "./log_settings";
import { toAddressTime, toFieldTime } from "./log_times";
import "./log.css";

interface Props {
  /** Fields in addition to the filters of every log. */
  fields?: ComponentChildren;
  hasRanks: boolean;
  /** Names of the filters in addition to those of every log. */
  filters?: readonly string[];
  /** Tools in the row of the switches. */
  tools?: ComponentChildren;
  /** Tools beside the filters. */
  beside?: ComponentChildren;
  children: ComponentChildren;
}

export function LogFrame({ fields, hasRanks, filters = [], tools, beside, children }: Props) {
  const { query } = useRoute();
  const isFull = query.get("full") === "1";
  useKeyDown(isFull ? (event) => {
    if (event.key === "Escape" && !(event.target as HTMLElement).closest("dialog")) setQuery({ full: null });
  } : null);
  return (
    <section class={`log-view ${isFull ? "full" : ""}`} aria-label="log">
      <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
        <FilterFields hasRanks={hasRanks} />
        {fields}
        <ClearButton names={[...FILTERS, ...filters]} />
        {beside}
      </form>
      <div class="tools" role="group" aria-label="lines">
        {tools}
        <Switch name="wrap" title="Wrap" isDefault />
        <Switch name="times" title="Times" isDefault />
        <Switch name="fold" title="Fold tracebacks" isDefault={false} />
        <button type="button" aria-pressed={isFull} onClick={() => setQuery({ full: isFull ? null : "1" })}>
          {isFull ? "Leave the full window" : "Full window"}
        </button>
      </div>
      {children}
    </section>
  );
}

function FilterFields({ hasRanks }: { hasRanks: boolean }) {
  const { query } = useRoute();
  const setTime = (name: string) => (event: Event) => setQuery({ [name]: toAddressTime((event.currentTarget as HTMLInputElement).value) });
  return (
    <>
      <SearchField name="search" title="Text" />
      {hasRanks && <NumberField name="rank" title="Rank" min={0} max={99_999} />}
      <label>Level at least{" "}
        <select value={query.get("level") ?? ""} onChange={(event) => setQuery({ level: event.currentTarget.value })}>
          <option value="">any</option>
          {LEVELS.map((level) => <option key={level}>{level}</option>)}
        </select>
      </label>
      <label>From <input type="datetime-local" step="1" value={toFieldTime(query.get("since"))} onChange={setTime("since")} /></label>
      <label>Until <input type="datetime-local" step="1" value={toFieldTime(query.get("until"))} onChange={setTime("until")} /></label>
    </>
  );
}

/** Whether a switch of the view is on. The address has the switch only if it differs from the default. */
export function isOn(query: URLSearchParams, name: string, isDefault: boolean): boolean {
  const text = query.get(name);
  return text === null ? isDefault : text === "1";
}

function Switch({ name, title, isDefault }: { name: string; title: string; isDefault: boolean }) {
  const { query } = useRoute();
  const checked = isOn(query, name, isDefault);
  const next = checked === isDefault ? (isDefault ? "0" : "1") : null;
  return <label><input type="checkbox" checked={checked} onChange={() => setQuery({ [name]: next })} />{title}</label>;
}
