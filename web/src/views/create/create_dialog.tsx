/** The question before an experiment is created: for a fork with the changes of the configuration. */

import { FormDialog } from "../../parts/dialog";
import type { ForkOrigin } from "./fork";
import { diffLines, type DiffLine } from "./line_diff";
import "./create.css";

interface Props {
  origin: ForkOrigin;
  /** The configuration as YAML. */
  text: string;
  create: () => Promise<void>;
  onClose: () => void;
}

export function CreateDialog({ origin, text, create, onClose }: Props) {
  const lines = diffLines(origin.config, text);
  return (
    <FormDialog title="Create experiment" action="Create experiment" submit={create} onClose={onClose}>
      <p>{lines.length === 0
        ? `The configuration is unchanged from ${origin.about}.`
        : `Changes from the configuration of ${origin.about}:`}</p>
      {lines.length > 0 && (
        <pre class="diff" tabIndex={0} aria-label="changes">{lines.map((line, place) => <Line key={place} line={line} />)}</pre>
      )}
    </FormDialog>
  );
}

function Line({ line: { sign, text } }: { line: DiffLine }) {
  if (sign === "+") return <ins>+ {text}</ins>;
  if (sign === "-") return <del>- {text}</del>;
  return <span class={sign === "@" ? "quiet" : ""}>{sign === "@" ? `… ${text}` : `  ${text}`}{"\n"}</span>;
}
