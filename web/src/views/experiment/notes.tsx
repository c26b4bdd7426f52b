/** An experiment's name, notes, labels and metadata, edited in place. */

import { useState } from "preact/hooks";
import { send } from "../../api/client";
import { EditDialog } from "../../parts/edit_dialog";
import { Labels } from "../../parts/labels";
import { Metadata } from "../../parts/metadata";
import type { ExperimentWhole } from "./experiment_view";

interface Props {
  experiment: ExperimentWhole;
  onDone: () => Promise<void>;
}

type Said = Pick<ExperimentWhole, "name" | "description" | "labels" | "metadata">;

export function Notes({ experiment, onDone }: Props) {
  const [edits, setEdits] = useState(false);
  const { name, description, labels, metadata } = experiment;
  const save = async (changes: Partial<Said>) => {
    await send("patch", "/api/v1/experiments/{experiment_id}", { path: { experiment_id: experiment.id! }, body: changes });
    await onDone();
  };
  return (
    <section aria-label="notes and labels">
      <Labels labels={labels} />
      <button onClick={() => setEdits(true)}>Edit name, notes, labels and metadata</button>
      {description && <p class="notes">{description}</p>}
      <Metadata of={metadata} />
      {edits && (
        <EditDialog<Said> title="Name, notes, labels and metadata" action="Save" former={{ name, description, labels, metadata }} save={save}
          fields={[{ key: "name", title: "Name" }, { key: "description", title: "Notes", rows: 5 }]}
          onClose={() => setEdits(false)} />
      )}
    </section>
  );
}
