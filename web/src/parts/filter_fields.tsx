/** Fields that narrow a list; what they say stays in the address. */

import { setQuery, useRoute } from "../shell/router";
import { useDraft } from "./draft";

interface SearchProps {
  name: string;
  title: string;
  /** Search while one types, where that costs little and any part of the text finds something. */
  eager?: boolean;
}

export function SearchField({ name, title, eager = false }: SearchProps) {
  return <label>{title} <input type="search" size={14} {...useQueryDraft(name, eager)} /></label>;
}

interface NumberProps {
  name: string;
  title: string;
  min: number;
  max: number;
}

export function NumberField({ name, title, min, max }: NumberProps) {
  return <label>{title} <input type="number" min={min} max={max} {...useQueryDraft(name)} /></label>;
}

/** A button that takes all of these out of the address, where there are any. */
export function ClearButton({ names }: { names: readonly string[] }) {
  const { query } = useRoute();
  if (!names.some((name) => query.get(name))) return null;
  const none = Object.fromEntries(names.map((name) => [name, null]));
  return <button type="button" onClick={() => setQuery(none)}>Clear filters</button>;
}

function useQueryDraft(name: string, eager = false) {
  return useDraft(useRoute().query.get(name) ?? "", (text) => setQuery({ [name]: text }), eager);
}

/** The fields that lists of experiments, commands and notebooks have: the words of users. */
export function WordFields() {
  return (
    <>
      <SearchField name="name" title="Name contains" eager />
      <SearchField name="label" title="Label" />
      <SearchField name="user" title="User" />
    </>
  );
}

export function ArchivedField() {
  const { query } = useRoute();
  return (
    <label>Archived{" "}
      <select value={query.get("archived") ?? "false"}
        onChange={(event) => setQuery({ archived: event.currentTarget.value === "false" ? null : event.currentTarget.value })}>
        <option value="false">Hide</option>
        <option value="all">Show</option>
        <option value="true">Only</option>
      </select>
    </label>
  );
}
