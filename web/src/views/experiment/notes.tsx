/** An experiment's name, notes and labels, edited in place. */

import { useState } from "preact/hooks";
import { send } from "../../api/client";
import { FormDialog } from "../../parts/dialog";
import { Labels } from "../../parts/labels";
import type { ExperimentWhole } from "./experiment_view";

interface Props {
  experiment: ExperimentWhole;
  onDone: () => Promise<void>;
}

export function Notes({ experiment, onDone }: Props) {
  const [edits, setEdits] = useState(false);
  return (
    <section aria-label="notes and labels">
      <Labels labels={experiment.labels} />
      <button onClick={() => setEdits(true)}>Edit name, notes and labels</button>
      {experiment.description && <p class="notes">{experiment.description}</p>}
      {edits && <NotesDialog experiment={experiment} onDone={onDone} onClose={() => setEdits(false)} />}
    </section>
  );
}

function NotesDialog({ experiment, onDone, onClose }: Props & { onClose: () => void }) {
  const [name, setName] = useState(experiment.name);
  const [notes, setNotes] = useState(experiment.description);
  const [labels, setLabels] = useState(experiment.labels.join("\n"));
  const submit = async () => {
    const given = labels.split("\n").map((label) => label.trim()).filter(Boolean);
    const changes = {
      ...(name !== experiment.name && { name }),
      ...(notes !== experiment.description && { description: notes }),
      ...(labels !== experiment.labels.join("\n") && { labels: given }),
    };
    await send("patch", "/api/v1/experiments/{experiment_id}", { path: { experiment_id: experiment.id! }, body: changes });
    await onDone();
  };
  return (
    <FormDialog title="Name, notes and labels" action="Save" submit={submit} onClose={onClose}>
      <label>Name <input class="wide" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
      <label>Notes <textarea class="wide" rows={5} value={notes} onInput={(event) => setNotes(event.currentTarget.value)} /></label>
      <label>Labels, one a line <textarea class="wide" rows={4} value={labels} onInput={(event) => setLabels(event.currentTarget.value)} /></label>
    </FormDialog>
  );
}
