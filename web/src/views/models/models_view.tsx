/** The registry's models by name, and new ones. */

import { useState } from "preact/hooks";
import { collect, get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { EditDialog, type EditedField } from "../../parts/edit_dialog";
import { ArchivedField, ClearButton, SearchField } from "../../parts/filter_fields";
import { Heading } from "../../parts/heading";
import { Labels } from "../../parts/labels";
import { Badge, Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";

type Model = Schemas["Model"];

const PAGE = 30;
const FILTERS = ["name", "workspace", "label", "user", "archived"] as const;

export function ModelsView() {
  const { query } = useRoute();
  const [creates, setCreates] = useState(false);
  const most = Math.max(PAGE, Number(query.get("most")) || PAGE);
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, query.get(name)]));
  const isFiltered = FILTERS.some((name) => query.get(name));
  const live = useLive(
    JSON.stringify(["models", wanted, most]),
    (signal) => collect((cursor) => get("/api/v1/models", { query: { ...wanted, limit: PAGE, cursor }, signal }), most),
    () => "resting",
  );
  return (
    <>
      <Heading title="Models" />
      <form class="tools" role="search" onSubmit={(event) => event.preventDefault()}>
        <SearchField name="name" title="Name contains" eager />
        <SearchField name="workspace" title="Workspace" />
        <SearchField name="label" title="Label" />
        <SearchField name="user" title="User" />
        <ArchivedField />
        <ClearButton names={FILTERS} />
        <button type="button" onClick={() => setCreates(true)}>New model</button>
      </form>
      <Shown live={live}>
        {({ items, next }) => items.length === 0 ? (
          <Empty>
            {isFiltered ? "No models match these filters." : "No models yet. A model is a named list of checkpoints, its versions. Checkpoints of versions are not deleted."}
          </Empty>
        ) : (
          <>
            <Table label="models" rows={items} rowKey={({ name }) => name} columns={COLUMNS} />
            <div class="tools">
              <span class="quiet">{items.length} shown{next && ", the first by name; sorting is among these"}</span>
              {next && <button onClick={() => setQuery({ most: String(most * 2) })}>Show more</button>}
            </div>
          </>
        )}
      </Shown>
      {creates && <NewModelDialog onClose={() => setCreates(false)} />}
    </>
  );
}

const COLUMNS: Column<Model>[] = [
  {
    key: "name",
    title: "Name",
    show: ({ name, archived }) => <><a href={href("models", name)}>{name}</a> {archived && <Badge state="ARCHIVED" />}</>,
    value: ({ name }) => name,
  },
  { key: "versions", title: "Versions", isNumber: true, show: ({ versions }) => versions, value: ({ versions }) => versions },
  { key: "description", title: "Description", show: ({ description }) => description || "–" },
  { key: "labels", title: "Labels", show: ({ labels }) => <Labels labels={labels} of="models" /> },
  { key: "workspace", title: "Workspace", show: ({ workspace }) => workspace, value: ({ workspace }) => workspace },
  { key: "user", title: "Owner", show: ({ user }) => user, value: ({ user }) => user },
  { key: "updated", title: "Changed", show: (one) => <Moment ms={one.updated_ms} />, value: (one) => one.updated_ms },
];

type Said = Pick<Model, "name" | "workspace" | "description" | "notes" | "labels" | "metadata">;

const NOTHING: Said = { name: "", workspace: "Uncategorized", description: "", notes: "", labels: [], metadata: {} };
const FIELDS: EditedField<Said>[] = [
  {
    key: "name",
    title: "Name (cannot be changed later)",
    isRequired: true,
    pattern: String.raw`(?=.{1,128}$)[A-Za-z0-9_]([A-Za-z0-9 _.+:@\(\)\-]*[A-Za-z0-9_.+:@\(\)\-])?`,
    hint: "1 to 128 letters, digits and _ . + : @ ( ) -, the first a letter, a digit or _; spaces are between them",
  },
  { key: "workspace", title: "Workspace", isRequired: true },
  { key: "description", title: "Description", rows: 2 },
  { key: "notes", title: "Notes", rows: 4 },
];

function NewModelDialog({ onClose }: { onClose: () => void }) {
  const create = async (said: Partial<Said>) => {
    const { name } = await send("post", "/api/v1/models", { body: said });
    location.hash = href("models", name);
  };
  return <EditDialog<Said> title="New model" action="Create" former={NOTHING} fields={FIELDS} save={create} onClose={onClose} />;
}
