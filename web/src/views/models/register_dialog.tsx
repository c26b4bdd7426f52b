/** A window that makes a checkpoint a version of a model. */

import { useState } from "preact/hooks";
import { collect, get, send } from "../../api/client";
import { useLive } from "../../live/use_live";
import { FormDialog } from "../../parts/dialog";
import { Empty, Shown } from "../../parts/status";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";

interface Props {
  /** The model, where it is known. */
  model?: string;
  /** The checkpoint, where it is known. */
  uuid?: string;
  onDone?: () => Promise<void>;
  onClose: () => void;
}

const MODELS_MAX = 600;

export function RegisterDialog({ model = "", uuid = "", onDone, onClose }: Props) {
  const [name, setName] = useState(model);
  const [checkpoint, setCheckpoint] = useState(uuid);
  const [comment, setComment] = useState("");
  const submit = async () => {
    if (!name) throw new Error("choose a model first");
    const body = { checkpoint_uuid: checkpoint.trim(), comment };
    const { number } = await send("post", "/api/v1/models/{name}/versions", { path: { name }, body });
    await onDone?.();
    location.hash = href("models", name, number);
  };
  return (
    <FormDialog title={uuid ? `Register ${uuid.slice(0, 8)}` : `New version of ${model}`} action="Register version" submit={submit} onClose={onClose}
      isChanged={comment !== "" || checkpoint !== uuid}>
      <p class="quiet">A registered checkpoint stays until its version is deleted.</p>
      {!model && <ModelChoice name={name} onChoose={setName} />}
      {!uuid && (
        <label>Checkpoint, or a unique beginning of it{" "}
          <input class="wide" required maxLength={36} value={checkpoint} onInput={(event) => setCheckpoint(event.currentTarget.value)} />
        </label>
      )}
      <label>Comment <textarea class="wide" rows={2} value={comment} onInput={(event) => setComment(event.currentTarget.value)} /></label>
    </FormDialog>
  );
}

function ModelChoice({ name, onChoose }: { name: string; onChoose: (name: string) => void }) {
  const who = useWho();
  const live = useLive(
    "models to choose from",
    (signal) => collect((cursor) => get("/api/v1/models", { query: { limit: 30, cursor }, signal }), MODELS_MAX),
    () => "still",
  );
  const ours = live.value?.items.filter(({ user }) => mayChange(who, user)) ?? [];
  return (
    <Shown live={live}>
      {({ items, next }) => ours.length === 0 && !next ? <Empty>You own no model yet: <a href={href("models")}>create a model</a>.</Empty> : (
        <>
          <label>Model{" "}
            <select required value={name} onChange={(event) => onChoose(event.currentTarget.value)}>
              <option value="">choose …</option>
              {ours.map((one) => <option key={one.name}>{one.name}</option>)}
            </select>
          </label>
          {next && <p class="quiet">Your models among the first {items.length} are listed. For another model of yours, open the page of the model and register the checkpoint there.</p>}
        </>
      )}
    </Shown>
  );
}
