/** A version of a model: its checkpoint with the files, and what is said of it. */

import { useEffect, useRef, useState } from "preact/hooks";
import { get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { EditDialog } from "../../parts/edit_dialog";
import { bytesText, countText, numberText } from "../../parts/format";
import { Badge, Moment, Shown } from "../../parts/status";
import { href } from "../../shell/router";
import { FilesDialog } from "../checkpoints/files_dialog";
import { Remarks } from "./remarks";

type Version = Schemas["ModelVersion"];
type Said = Pick<Version, "name" | "comment" | "notes" | "labels" | "metadata">;

interface Props {
  model: Schemas["Model"];
  number: number;
  onDone: () => Promise<void>;
}

export function VersionPart({ model, number, onDone }: Props) {
  const path = { name: model.name, number };
  const heading = useRef<HTMLHeadingElement>(null);
  // What was asked for is below the table, which may be long.
  useEffect(() => heading.current?.focus(), []);
  const live = useLive(
    `version ${number} of ${model.name}`,
    (signal) => get("/api/v1/models/{name}/versions/{number}", { path, signal }),
    () => "still",
    String(model.revision),
  );
  const afterChange = async () => {
    await Promise.all([live.refresh(), onDone()]);
  };
  const remove = async () => {
    await send("delete", "/api/v1/models/{name}/versions/{number}", { path });
    location.hash = href("models", model.name);
    await onDone();
  };
  return (
    <section aria-label={`version ${number}`}>
      <h2 ref={heading} tabIndex={-1}>Version {number}{live.value?.name && `: ${live.value.name}`}</h2>
      <Shown live={live}>
        {(version) => (
          <>
            <VersionTools version={version} isArchived={model.archived} onDone={afterChange} remove={remove} />
            <VersionFacts version={version} />
            <Remarks of={version} />
          </>
        )}
      </Shown>
    </section>
  );
}

interface ToolsProps {
  version: Version;
  isArchived: boolean;
  onDone: () => Promise<void>;
  remove: () => Promise<void>;
}

function VersionTools({ version, isArchived, onDone, remove }: ToolsProps) {
  const [edited, setEdited] = useState<Version | null>(null);
  const [showsFiles, setShowsFiles] = useState(false);
  const { number, checkpoint_uuid: uuid } = version;
  const question = `Delete version ${number}, which holds its checkpoint no longer? This cannot be undone.`;
  return (
    <div class="tools" role="group" aria-label={`change version ${number}`}>
      <button onClick={() => setShowsFiles(true)}>Files</button>
      {!isArchived && <button onClick={() => setEdited(version)}>Edit version</button>}
      <Action label="Delete version" question={question} run={remove} />
      {showsFiles && <FilesDialog uuid={uuid} onClose={() => setShowsFiles(false)} />}
      {edited && <VersionDialog version={edited} onDone={onDone} onClose={() => setEdited(null)} />}
    </div>
  );
}

interface DialogProps {
  version: Version;
  onDone: () => Promise<void>;
  onClose: () => void;
}

/** Changes the version that was read when it opened, and not one that somebody changed since. */
function VersionDialog({ version, onDone, onClose }: DialogProps) {
  const { number, name, comment, notes, labels, metadata, revision } = version;
  const save = async (changes: Partial<Said>) => {
    const path = { name: version.model, number };
    await send("patch", "/api/v1/models/{name}/versions/{number}", { path, body: { ...changes, revision } });
    await onDone();
  };
  return (
    <EditDialog<Said> title={`Version ${number}`} action="Save" former={{ name, comment, notes, labels, metadata }} save={save} onClose={onClose}
      fields={[
        { key: "name", title: "Name" },
        { key: "comment", title: "Comment", rows: 2 },
        { key: "notes", title: "Notes", rows: 5 },
      ]} />
  );
}

function VersionFacts({ version }: { version: Version }) {
  const { checkpoint_uuid: uuid, experiment_id: experiment, trial_id: trial } = version;
  const checkpoint = useLive(`checkpoint ${uuid}`, (signal) => get("/api/v1/checkpoints/{uuid}", { path: { uuid }, signal }), () => "still");
  return (
    <>
      <dl class="facts">
        {version.comment && <><dt>Comment</dt><dd>{version.comment}</dd></>}
        <dt>Checkpoint</dt>
        <dd><code>{uuid}</code></dd>
        <dt>From</dt>
        <dd>
          <a href={href("trials", trial)}>trial {trial}</a> of <a href={href("experiments", experiment)}>experiment {experiment}</a>,
          after {version.steps_completed} steps
        </dd>
        <dt>Registered</dt>
        <dd><Moment ms={version.created_ms} /> by {version.user}</dd>
      </dl>
      <Shown live={checkpoint}>
        {({ state, metric, size_bytes: size, files }) => (
          <p><Badge state={state} /> metric {numberText(metric)}, {bytesText(size)} in {countText(files, "file")}</p>
        )}
      </Shown>
    </>
  );
}
