/** What the list is narrowed to; it stays in the address. */

import { ArchivedField, ClearButton, SearchField, WordFields } from "../../parts/filter_fields";
import { setQuery, useRoute } from "../../shell/router";
import { GroupField } from "../projects/group_field";

export const FILTERS = ["name", "label", "user", "workspace", "project", "metadata", "state", "has_failed_trials", "archived"] as const;

const STATES = ["running", "queued", "paused", "finished", "canceled", "failed"];

/** Of several states each is shown; of none, all are. */
export function StateButtons({ states = STATES }: { states?: string[] }) {
  const chosen = (useRoute().query.get("state") ?? "").split(",").filter(Boolean);
  const toggle = (state: string) =>
    setQuery({ state: (chosen.includes(state) ? chosen.filter((one) => one !== state) : [...chosen, state]).join(",") });
  return (
    <span class="states" role="group" aria-label="State">
      {/* Those too that an address alone names. */}
      {[...new Set([...states, ...chosen])].map((state) => (
        <button key={state} type="button" aria-pressed={chosen.includes(state)} onClick={() => toggle(state)}>{state}</button>
      ))}
    </span>
  );
}

/** Narrow the list to experiments with failed trials, whatever their own states are. */
function FailedTrialsButton() {
  const isPressed = useRoute().query.get("has_failed_trials") === "true";
  return (
    <span class="states">
      <button type="button" aria-pressed={isPressed} onClick={() => setQuery({ has_failed_trials: isPressed ? null : "true" })}>
        with failed trials
      </button>
    </span>
  );
}

export function Filters() {
  const { query } = useRoute();
  return (
    <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
      <WordFields />
      <GroupField kind="workspace" title="Workspace" value={query.get("workspace") ?? ""} onChange={(workspace) => setQuery({ workspace })} />
      <GroupField kind="project" title="Project" value={query.get("project") ?? ""} workspace={query.get("workspace") ?? ""}
        onChange={(project) => setQuery({ project })} />
      <SearchField name="metadata" title="Metadata, key=value" />
      <StateButtons />
      <FailedTrialsButton />
      <ArchivedField />
      <ClearButton names={FILTERS} />
    </form>
  );
}
