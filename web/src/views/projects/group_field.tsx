/** A field for the name of a workspace or project, which offers those that there are. */

import { useId, useState } from "preact/hooks";
import { get } from "../../api/client";
import { useDraft } from "../../parts/draft";
import { messageOf } from "../../parts/format";

interface Props {
  kind: "workspace" | "project";
  title: string;
  value: string;
  /** Offer the projects of this workspace; those of all for "". */
  workspace?: string;
  isRequired?: boolean;
  onChange: (name: string) => void;
}

export function GroupField({ kind, title, value, workspace = "", isRequired = false, onChange }: Props) {
  const id = useId();
  const [names, setNames] = useState<string[]>([]);
  const [error, setError] = useState("");

  // When it is entered, not before: it counts the experiments of the cluster.
  async function offer(): Promise<void> {
    setError("");
    try {
      const { items } = kind === "workspace"
        ? await get("/api/v1/workspaces")
        : await get("/api/v1/projects", { query: { workspace } });
      setNames([...new Set(items.map((item) => ("project" in item ? item.project : item.workspace)))].sort());
    } catch (failure) {
      setError(messageOf(failure));
    }
  }

  return (
    <label>{title}{" "}
      <input list={id} {...useDraft(value, onChange)} size={14} maxLength={128} required={isRequired}
        pattern="[^,\/]+" title="1 to 128 characters, none of them a comma or a /"
        onFocus={() => void offer()} />
      <datalist id={id}>{names.map((name) => <option key={name} value={name} />)}</datalist>
      {error && <span class="failure" role="alert">{error}</span>}
    </label>
  );
}
