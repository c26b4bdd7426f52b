/** What the list is narrowed to; it stays in the address. */

import { ArchivedField, SearchField } from "../../parts/filter_fields";
import { setQuery, useRoute } from "../../shell/router";

export const FILTERS = ["name", "label", "user", "state", "archived"] as const;

const STATES = ["ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR"];

export function Filters() {
  const { query } = useRoute();
  return (
    <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
      <SearchField name="name" title="Name has" />
      <SearchField name="label" title="Label" />
      <SearchField name="user" title="User" />
      <label>State{" "}
        <select value={query.get("state") ?? ""}
          onChange={(event) => setQuery({ state: event.currentTarget.value })}>
          <option value="">any</option>
          {STATES.map((state) => <option key={state}>{state}</option>)}
        </select>
      </label>
      <ArchivedField />
    </form>
  );
}
