/** A model of the registry: what is said of it, and its versions, one of them opened. */

import { useState } from "preact/hooks";
import { collect, get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { countText } from "../../parts/format";
import { Heading } from "../../parts/heading";
import { InPlace } from "../../parts/in_place";
import { Labels } from "../../parts/labels";
import { Remarks } from "../../parts/remarks";
import { Badge, Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { RegisterDialog } from "./register_dialog";
import { VersionPart } from "./version_part";

type Model = Schemas["Model"];
type Version = Schemas["ModelVersion"];

const PAGE = 30;

export function ModelView({ name }: { name: string }) {
  const { parts, query } = useRoute();
  const most = Math.max(PAGE, Number(query.get("most")) || PAGE);
  const path = { name };
  const live = useLive(`model ${name}`, (signal) => get("/api/v1/models/{name}", { path, signal }), () => "resting");
  const versions = useLive(
    JSON.stringify(["versions", name, most]),
    (signal) => collect((cursor) => get("/api/v1/models/{name}/versions", { path, query: { limit: PAGE, cursor }, signal }), most),
    () => "still",
    String(live.value?.revision ?? ""),
  );
  const refresh = async () => {
    await Promise.all([live.refresh(), versions.refresh()]);
  };
  const opened = parts[2];
  return (
    <Shown live={live}>
      {(model) => (
        <>
          <p class="crumbs"><a href={href("models")}>Models</a> / model</p>
          <Heading title={name}>{model.archived && <Badge state="ARCHIVED" />}</Heading>
          <ModelTools model={model} onDone={refresh} />
          <ModelFacts model={model} onDone={refresh} />
          <h2>Versions</h2>
          <Shown live={versions}>
            {({ items, next }) => items.length === 0 ? <Empty>No versions yet. Register a checkpoint here or in a list of checkpoints.</Empty> : (
              <>
                <Table label="versions" rows={items} rowKey={({ number }) => number} columns={COLUMNS} />
                {next && (
                  <div class="tools">
                    <span class="quiet">{items.length} newest shown; sorting is among these</span>
                    <button onClick={() => setQuery({ most: String(most * 2) })}>Show more</button>
                  </div>
                )}
              </>
            )}
          </Shown>
          {opened && <Opened model={model} number={opened} onDone={refresh} />}
        </>
      )}
    </Shown>
  );
}

function Opened({ model, number, onDone }: { model: Model; number: string; onDone: () => Promise<void> }) {
  if (!/^[1-9]\d{0,8}$/.test(number)) return <Empty>No version has the number {number}.</Empty>;
  return <VersionPart key={number} model={model} number={Number(number)} onDone={onDone} />;
}

interface ModelProps {
  model: Model;
  onDone: () => Promise<void>;
}

type Said = Pick<Model, "workspace" | "description" | "notes" | "labels" | "metadata">;

function ModelTools({ model, onDone }: ModelProps) {
  const [registers, setRegisters] = useState(false);
  const { name, archived, versions } = model;
  const path = { name };
  const isOurs = mayChange(useWho(), model.user);
  const archive = async () => {
    await send("patch", "/api/v1/models/{name}", { path, body: { archived: !archived } });
    await onDone();
  };
  const remove = async () => {
    await send("delete", "/api/v1/models/{name}", { path });
    location.hash = href("models");
  };
  const question = `Delete the model ${name} and its ${countText(versions, "version")}? The versions no longer keep their checkpoints. This cannot be undone.`;
  return (
    <div class="tools" role="group" aria-label="change the model">
      {isOurs && !archived && <button onClick={() => setRegisters(true)}>Register a checkpoint</button>}
      {isOurs ? (
        <>
          <Action label={archived ? "Unarchive" : "Archive"} run={archive} />
          <Action label="Delete model" question={question} run={remove} />
        </>
      ) : <span class="quiet">Only {model.user} and admins can change it and add versions.</span>}
      {registers && <RegisterDialog model={name} onDone={onDone} onClose={() => setRegisters(false)} />}
    </div>
  );
}

/** The facts of the model, which its owner and admins edit in place; a change by somebody else in between is refused. */
function ModelFacts({ model, onDone }: ModelProps) {
  const mayEdit = mayChange(useWho(), model.user) && !model.archived;
  const of = `model ${model.name}`;
  const save = async (changes: Partial<Said>) => {
    await send("patch", "/api/v1/models/{name}", { path: { name: model.name }, body: { ...changes, revision: model.revision } });
    await onDone();
  };
  return (
    <>
      <dl class="facts">
        <dt>Description</dt>
        <dd>
          <InPlace of={of} name="description" mayEdit={mayEdit} value={model.description} rows={2} reload={onDone} save={(description) => save({ description })}>
            {model.description || (!mayEdit && "–")}
          </InPlace>
        </dd>
        <dt>Workspace</dt>
        <dd>
          <InPlace of={of} name="workspace" mayEdit={mayEdit} value={model.workspace} isRequired reload={onDone} save={(workspace) => save({ workspace })}>
            {model.workspace}
          </InPlace>
        </dd>
        <dt>Owner</dt><dd>{model.user}</dd>
        <dt>Created</dt><dd><Moment ms={model.created_ms} /></dd>
        <dt>Changed</dt><dd><Moment ms={model.updated_ms} /></dd>
        <dt>Versions</dt><dd>{model.versions}</dd>
      </dl>
      <Remarks name={of} labels={model.labels} labelsOf="models" notes={model.notes} metadata={model.metadata} mayEdit={mayEdit} save={save} reload={onDone} />
    </>
  );
}

const COLUMNS: Column<Version>[] = [
  {
    key: "number",
    title: "Version",
    isNumber: true,
    show: ({ model, number }) => <a href={href("models", model, number)} aria-label={`version ${number}`}>{number}</a>,
    value: ({ number }) => number,
  },
  { key: "name", title: "Name", show: ({ name }) => name || "–", value: ({ name }) => name },
  { key: "checkpoint", title: "Checkpoint", show: (one) => <code title={one.checkpoint_uuid}>{one.checkpoint_uuid.slice(0, 8)}</code> },
  {
    key: "experiment",
    title: "Experiment",
    isNumber: true,
    show: (one) => <a href={href("experiments", one.experiment_id)}>{one.experiment_id}</a>,
    value: (one) => one.experiment_id,
  },
  { key: "trial", title: "Trial", isNumber: true, show: (one) => <a href={href("trials", one.trial_id)}>{one.trial_id}</a>, value: (one) => one.trial_id },
  { key: "steps", title: "Steps", isNumber: true, show: (one) => one.steps_completed, value: (one) => one.steps_completed },
  { key: "comment", title: "Comment", show: ({ comment }) => comment || "–" },
  { key: "labels", title: "Labels", show: ({ labels }) => <Labels labels={labels} of="models" /> },
  { key: "user", title: "By", show: ({ user }) => user, value: ({ user }) => user },
  { key: "created", title: "Registered", show: (one) => <Moment ms={one.created_ms} />, value: (one) => one.created_ms },
];
