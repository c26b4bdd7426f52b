/** What the list is narrowed to; it stays in the address. */

import { ArchivedField, ClearButton, SearchField } from "../../parts/filter_fields";
import { setQuery, useRoute } from "../../shell/router";
import { GroupField } from "../projects/group_field";

export const FILTERS = ["name", "label", "user", "workspace", "project", "metadata", "state", "archived"] as const;

const STATES = ["ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR"];

export function Filters() {
  const { query } = useRoute();
  return (
    <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
      <SearchField name="name" title="Name has" eager />
      <SearchField name="label" title="Label" />
      <SearchField name="user" title="User" />
      <GroupField kind="workspace" title="Workspace" value={query.get("workspace") ?? ""} onChange={(workspace) => setQuery({ workspace })} />
      <GroupField kind="project" title="Project" value={query.get("project") ?? ""} workspace={query.get("workspace") ?? ""}
        onChange={(project) => setQuery({ project })} />
      <SearchField name="metadata" title="Metadata, key=value" />
      <label>State{" "}
        <select value={query.get("state") ?? ""}
          onChange={(event) => setQuery({ state: event.currentTarget.value })}>
          <option value="">any</option>
          {STATES.map((state) => <option key={state}>{state}</option>)}
        </select>
      </label>
      <ArchivedField />
      <ClearButton names={FILTERS} />
    </form>
  );
}
