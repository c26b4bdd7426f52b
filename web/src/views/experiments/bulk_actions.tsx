/** Buttons that change all chosen experiments or commands of this user, and the errors of the refused ones. */

import { useState } from "preact/hooks";
import { send, type Schemas } from "../../api/client";
import { Action } from "../../parts/dialog";
import { messageOf } from "../../parts/format";
import { href } from "../../shell/router";
import { mayChange, useWho } from "../../shell/who";
import { MoveDialog } from "./move_dialog";

type Verb = "pause" | "activate" | "cancel" | "kill" | "archive" | "unarchive";

interface Props {
  /** What they are; commands are notebooks and shells too. */
  of?: "experiment" | "command";
  chosen: Schemas["Experiment"][];
  /** Called with the ids of the changed ones. */
  onDone: (ids: number[]) => Promise<void>;
}

const AT_ONCE = 8;

export function BulkActions({ of = "experiment", chosen, onDone }: Props) {
  const who = useWho();
  const ids = chosen.filter(({ user }) => mayChange(who, user)).map(({ id }) => id!);
  const [refused, setRefused] = useState<string[]>([]);
  const [moves, setMoves] = useState(false);

  async function each(run: (id: number) => Promise<unknown>): Promise<void> {
    const failures: string[] = [];
    const done: number[] = [];
    for (let start = 0; start < ids.length; start += AT_ONCE) {
      await Promise.all(ids.slice(start, start + AT_ONCE).map(async (id) => {
        try {
          await run(id);
          done.push(id);
        } catch (error) {
          failures.push(`${of} ${id}: ${messageOf(error)}`);
        }
      }));
    }
    setRefused(failures);
    await onDone(done);
  }

  const change = (verb: Verb) => () =>
    each((id) => send("post", `/api/v1/experiments/{experiment_id}/${verb}`, { path: { experiment_id: id } }));
  const move = (workspace: string, project: string) =>
    each((id) => send("patch", "/api/v1/experiments/{experiment_id}", { path: { experiment_id: id }, body: { workspace, project } }));
  const remove = () =>
    each((id) => send("delete", "/api/v1/experiments/{experiment_id}", { path: { experiment_id: id } }));
  const isExperiments = of === "experiment";
  const count = ids.length === 1 ? `${of} ${ids[0]}` : `${ids.length} ${of}s`;
  const lost = isExperiments ? "Work since the last checkpoint is lost." : "They are not restarted. Files that they did not store elsewhere are lost.";
  const gone = isExperiments ? "with checkpoints, metrics and logs" : "with their logs";
  const none = ids.length === 0;
  return (
    <div class="tools" role="group" aria-label={`actions on selected ${of}s`}>
      <span class="quiet">{chosenText(chosen.length, chosen.length - ids.length)}</span>
      {isExperiments && <Action label="Pause" disabled={none} run={change("pause")} />}
      {isExperiments && <Action label="Activate" disabled={none} run={change("activate")} />}
      {isExperiments && <Action label="Cancel" disabled={none} run={change("cancel")} confirm={`Cancel ${of}s`} question={`Cancel ${count}? Trials save checkpoints first.`} />}
      <Action label="Kill" disabled={none} run={change("kill")} question={`Kill ${count}? ${lost}`} />
      <button disabled={none} onClick={() => setMoves(true)}>Move</button>
      <Action label="Archive" disabled={none} run={change("archive")} />
      <Action label="Unarchive" disabled={none} run={change("unarchive")} />
      <Action label="Delete" disabled={none} run={remove} question={`Delete ${count} ${gone}? This cannot be undone.`} />
      {isExperiments && chosen.length > 1 && <a href={`${href("compare")}?experiments=${chosen.map(({ id }) => id).join(",")}`}>Compare</a>}
      {moves && <MoveDialog count={count} move={move} onClose={() => setMoves(false)} />}
      {refused.length > 0 && <ul class="failure" role="alert">{refused.map((text) => <li key={text}>{text}</li>)}</ul>}
    </div>
  );
}

function chosenText(count: number, others: number): string {
  if (count === 0) return "0 selected";
  if (others === 0) return `${count} selected`;
  return `${count} selected; you can change ${count - others}`;
}
