/** Adds labels to experiments, and removes labels. */

import { useState } from "preact/hooks";
import { FormDialog } from "../../parts/dialog";

interface Props {
  count: string;
  /** The labels that one of the experiments has. */
  present: string[];
  change: (added: string[], removed: string[]) => Promise<void>;
  onClose: () => void;
}

export function LabelDialog({ count, present, change, onClose }: Props) {
  const [added, setAdded] = useState("");
  const [removed, setRemoved] = useState<string[]>([]);
  const toggle = (label: string) =>
    setRemoved(removed.includes(label) ? removed.filter((one) => one !== label) : [...removed, label]);
  const labels = added.split(",").map((label) => label.trim()).filter(Boolean);
  return (
    <FormDialog title={`Labels of ${count}`} action="Save" submit={() => change(labels, removed)} onClose={onClose}
      isChanged={labels.length + removed.length > 0}>
      <label>Add labels, separated by commas <input class="wide" value={added} onInput={(event) => setAdded(event.currentTarget.value)} /></label>
      {present.length > 0 && (
        <fieldset>
          <legend>Remove</legend>
          {present.map((label) => (
            <label key={label}><input type="checkbox" checked={removed.includes(label)} onChange={() => toggle(label)} /> {label}</label>
          ))}
        </fieldset>
      )}
    </FormDialog>
  );
}
