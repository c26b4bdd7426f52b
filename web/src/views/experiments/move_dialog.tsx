/** Puts experiments into another project. */

import { useState } from "preact/hooks";
import { FormDialog } from "../../parts/dialog";
import { useRoute } from "../../shell/router";
import { GroupField } from "../projects/group_field";

interface Props {
  count: string;
  move: (workspace: string, project: string) => Promise<void>;
  onClose: () => void;
}

export function MoveDialog({ count, move, onClose }: Props) {
  const { query } = useRoute();
  const [workspace, setWorkspace] = useState(query.get("workspace") ?? "");
  const [project, setProject] = useState("");
  return (
    <FormDialog title={`Move ${count}`} action="Move" submit={() => move(workspace, project)} onClose={onClose}>
      <GroupField kind="workspace" title="To workspace" value={workspace} onChange={setWorkspace} isRequired />
      <GroupField kind="project" title="To project" value={project} workspace={workspace} onChange={setProject} isRequired />
      <p class="quiet">A new name creates a new workspace or project.</p>
    </FormDialog>
  );
}
