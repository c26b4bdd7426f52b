/** Fields that narrow a list; what they say stays in the address. */

import { setQuery, useRoute } from "../shell/router";

export function SearchField({ name, title }: { name: string; title: string }) {
  const { query } = useRoute();
  return (
    <label>{title}{" "}
      <input type="search" value={query.get(name) ?? ""} size={14}
        onChange={(event) => setQuery({ [name]: event.currentTarget.value })} />
    </label>
  );
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
