/** What the list is narrowed to; it stays in the address. */

import { setQuery, useRoute } from "../../shell/router";

export const FILTERS = ["name", "label", "user", "state", "archived"] as const;

const STATES = ["ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR"];

export function Filters() {
  const { query } = useRoute();
  const text = (name: string, title: string) => (
    <label>{title}{" "}
      <input type="search" value={query.get(name) ?? ""} size={14}
        onChange={(event) => setQuery({ [name]: event.currentTarget.value })} />
    </label>
  );
  return (
    <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
      {text("name", "Name has")}
      {text("label", "Label")}
      {text("user", "User")}
      <label>State{" "}
        <select value={query.get("state") ?? ""}
          onChange={(event) => setQuery({ state: event.currentTarget.value })}>
          <option value="">any</option>
          {STATES.map((state) => <option key={state}>{state}</option>)}
        </select>
      </label>
      <label>Archived{" "}
        <select value={query.get("archived") ?? "false"}
          onChange={(event) => setQuery({ archived: event.currentTarget.value === "false" ? null : event.currentTarget.value })}>
          <option value="false">without</option>
          <option value="all">with</option>
          <option value="true">only</option>
        </select>
      </label>
    </form>
  );
}
