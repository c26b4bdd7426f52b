/** Fields that narrow a list; what they say stays in the address. */

import { setQuery, useRoute } from "../shell/router";
import { useDraft } from "./draft";

export function SearchField({ name, title }: { name: string; title: string }) {
  return <label>{title} <input type="search" size={14} {...useQueryDraft(name)} /></label>;
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

function useQueryDraft(name: string) {
  return useDraft(useRoute().query.get(name) ?? "", (text) => setQuery({ [name]: text }));
}

export function ArchivedField() {
  const { query } = useRoute();
  return (
    <label>Archived{" "}
      <select value={query.get("archived") ?? "false"}
        onChange={(event) => setQuery({ archived: event.currentTarget.value === "false" ? null : event.currentTarget.value })}>
        <option value="false">without</option>
        <option value="all">with</option>
        <option value="true">only</option>
      </select>
    </label>
  );
}
