/** A version of a model: its checkpoint with the files, and what is said of it. */

import { useEffect, useRef, useState } from "preact/hooks";
import { get, send, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { bytesText, countText, numberText } from "../../parts/format";
import { InPlace } from "../../parts/in_place";
import { Remarks } from "../../parts/remarks";
import { Badge, Moment, Shown } from "../../parts/status";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { FilesDialog } from "../checkpoints/files_dialog";

type Version = Schemas["ModelVersion"];
type Said = Pick<Version, "name" | "comment" | "notes" | "labels" | "metadata">;

interface Props {
  model: Schemas["Model"];
  number: number;
  onDone: () => Promise<void>;
}

export function VersionPart({ model, number, onDone }: Props) {
  const who = useWho();
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
  const isOurs = ({ user }: Version) => mayChange(who, user) || mayChange(who, model.user);
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
            <VersionTools version={version} isOurs={isOurs(version)} remove={remove} />
            <VersionFacts version={version} mayEdit={isOurs(version) && !model.archived} onDone={afterChange} />
          </>
        )}
      </Shown>
    </section>
  );
}

interface ToolsProps {
  version: Version;
  /** Whether this user registered the version, owns its model or is an admin. */
  isOurs: boolean;
  remove: () => Promise<void>;
}

function VersionTools({ version, isOurs, remove }: ToolsProps) {
  const [showsFiles, setShowsFiles] = useState(false);
  const { number, checkpoint_uuid: uuid } = version;
  const question = `Delete version ${number}? The version no longer keeps its checkpoint. This cannot be undone.`;
  return (
    <div class="tools" role="group" aria-label={`change version ${number}`}>
      <button onClick={() => setShowsFiles(true)}>Files</button>
      {isOurs && <Action label="Delete version" question={question} run={remove} />}
      {showsFiles && <FilesDialog uuid={uuid} onClose={() => setShowsFiles(false)} />}
    </div>
  );
}

interface FactsProps {
  version: Version;
  mayEdit: boolean;
  onDone: () => Promise<void>;
}

/** What is said of the version, which is edited there; not one that somebody changed since. */
function VersionFacts({ version, mayEdit, onDone }: FactsProps) {
  const of = `version ${version.number} of ${version.model}`;
  const save = async (changes: Partial<Said>) => {
    const path = { name: version.model, number: version.number };
    await send("patch", "/api/v1/models/{name}/versions/{number}", { path, body: { ...changes, revision: version.revision } });
    await onDone();
  };
  const { checkpoint_uuid: uuid, experiment_id: experiment, trial_id: trial } = version;
  const checkpoint = useLive(`checkpoint ${uuid}`, (signal) => get("/api/v1/checkpoints/{uuid}", { path: { uuid }, signal }), () => "still");
  return (
    <>
      <dl class="facts">
        <dt>Name</dt>
        <dd>
          <InPlace of={of} name="version name" mayEdit={mayEdit} value={version.name} reload={onDone} save={(name) => save({ name })}>
            {version.name || (!mayEdit && "–")}
          </InPlace>
        </dd>
        <dt>Comment</dt>
        <dd>
          <InPlace of={of} name="comment" mayEdit={mayEdit} value={version.comment} rows={2} reload={onDone} save={(comment) => save({ comment })}>
            {version.comment || (!mayEdit && "–")}
          </InPlace>
        </dd>
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
      <Remarks name={of} labels={version.labels} labelsOf="models" notes={version.notes} metadata={version.metadata} mayEdit={mayEdit} save={save} reload={onDone} />
    </>
  );
}
