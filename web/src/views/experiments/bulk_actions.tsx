/** Buttons that change the selected experiments or commands of this user, and the errors of the refused ones. */

import { useState } from "preact/hooks";
import { send, type Schemas } from "../../api/client";
import { CompareLink } from "../../parts/compare_link";
import { Action } from "../../parts/dialog";
import { messageOf } from "../../parts/format";
import { mayChange, useWho } from "../../shell/who";
import { applies, type Verb } from "./applicable";
import { LabelDialog } from "./label_dialog";
import { MoveDialog } from "./move_dialog";
import { UndoMessage, type Undoable } from "./undo";

type Experiment = Schemas["Experiment"];

interface Props {
  /** What they are; commands are notebooks and shells too. */
  of?: "experiment" | "command";
  chosen: Experiment[];
  /** Called with the ids of the changed ones. */
  onDone: (ids: number[]) => Promise<void>;
}

const AT_ONCE = 8;
const ROUTE = "/api/v1/experiments/{experiment_id}";

export function BulkActions({ of = "experiment", chosen, onDone }: Props) {
  const who = useWho();
  const mine = chosen.filter(({ user }) => mayChange(who, user));
  const [refused, setRefused] = useState<string[]>([]);
  const [opened, setOpened] = useState<"move" | "label" | null>(null);
  const [undoable, setUndoable] = useState<Undoable | null>(null);
  const countText = (some: Experiment[]) => (some.length === 1 ? `${of} ${some[0]!.id}` : `${some.length} ${of}s`);

  async function each(some: Experiment[], run: (one: Experiment) => Promise<unknown>): Promise<Experiment[]> {
    const failures: string[] = [];
    const done: Experiment[] = [];
    for (let start = 0; start < some.length; start += AT_ONCE) {
      await Promise.all(some.slice(start, start + AT_ONCE).map(async (one) => {
        try {
          await run(one);
          done.push(one);
        } catch (error) {
          failures.push(`${of} ${one.id}: ${messageOf(error)}`);
        }
      }));
    }
    setRefused(failures);
    await onDone(done.map(({ id }) => id!));
    return done;
  }

  /** Offer to undo what was done to these. What is refused then is shown like every refusal. */
  function offerUndo(text: string, done: Experiment[], undo: (one: Experiment) => Promise<unknown>): void {
    if (done.length) setUndoable({ text: `${text} ${countText(done)}`, undo: async () => void (await each(done, undo)) });
  }

  const post = (verb: Verb) => ({ id }: Experiment) => send("post", `${ROUTE}/${verb}`, { path: { experiment_id: id! } });
  const patch = ({ id }: Experiment, body: Partial<Schemas["ExperimentChangeBody"]>) => send("patch", ROUTE, { path: { experiment_id: id! }, body });
  const fit = (verb: Parameters<typeof applies>[0]) => mine.filter((one) => applies(verb, one));

  async function archive(verb: "archive" | "unarchive"): Promise<void> {
    const done = await each(fit(verb), post(verb));
    const isArchived = verb === "archive";
    offerUndo(isArchived ? "Archived" : "Unarchived", done, post(isArchived ? "unarchive" : "archive"));
  }

  async function label(added: string[], removed: string[]): Promise<void> {
    const done = await each(fit("label"), (one) => patch(one, { labels: changedLabels(one.labels, added, removed) }));
    offerUndo("Changed the labels of", done, (one) => patch(one, { labels: one.labels }));
  }

  async function move(workspace: string, project: string): Promise<void> {
    await each(fit("move"), (one) => patch(one, { workspace, project }));
  }

  const isExperiments = of === "experiment";
  const lost = isExperiments ? "Work since the last checkpoint is lost." : "They are not restarted. Files that they did not store elsewhere are lost.";
  const gone = isExperiments ? "with checkpoints, metrics and logs" : "with their logs";
  /** The button of an action, with the number of experiments if the action does not apply to all of them. */
  function button(verb: Parameters<typeof applies>[0], title: string, run: () => Promise<unknown>, question?: (count: string) => string) {
    const some = fit(verb);
    if (some.length === 0) return null;
    const label = some.length < chosen.length ? `${title} ${some.length}` : title;
    return <Action key={verb} label={label} confirm={verb === "cancel" ? `Cancel ${of}s` : title} run={run}
      {...(question && { question: question(countText(some)) })} />;
  }

  return (
    <>
      {chosen.length > 0 && (
        <div class="tools chosen" role="group" aria-label={`actions on selected ${of}s`}>
          <span class="quiet">{chosenText(chosen.length, chosen.length - mine.length)}</span>
          {isExperiments && <CompareLink ids={chosen.map(({ id }) => id!)} />}
          {isExperiments && button("pause", "Pause", () => each(fit("pause"), post("pause")))}
          {isExperiments && button("activate", "Activate", () => each(fit("activate"), post("activate")))}
          {isExperiments && button("cancel", "Cancel", () => each(fit("cancel"), post("cancel")), (count) => `Cancel ${count}? Trials save checkpoints first.`)}
          {button("kill", "Kill", () => each(fit("kill"), post("kill")), (count) => `Kill ${count}? ${lost}`)}
          {fit("label").length > 0 && <button onClick={() => setOpened("label")}>Label</button>}
          {fit("move").length > 0 && <button onClick={() => setOpened("move")}>Move</button>}
          {button("archive", "Archive", () => archive("archive"))}
          {button("unarchive", "Unarchive", () => archive("unarchive"))}
          {button("delete", "Delete", () => each(fit("delete"), ({ id }) => send("delete", ROUTE, { path: { experiment_id: id! } })),
            (count) => `Delete ${count} ${gone}? This cannot be undone.`)}
        </div>
      )}
      {opened === "move" && <MoveDialog count={countText(fit("move"))} move={move} onClose={() => setOpened(null)} />}
      {opened === "label" && (
        <LabelDialog count={countText(fit("label"))} present={[...new Set(fit("label").flatMap(({ labels }) => labels))].sort()}
          change={label} onClose={() => setOpened(null)} />
      )}
      {undoable && <UndoMessage done={undoable} onClose={() => setUndoable(null)} />}
      {refused.length > 0 && <ul class="failure" role="alert">{refused.map((text) => <li key={text}>{text}</li>)}</ul>}
    </>
  );
}

/** The labels after a change, each once. */
export function changedLabels(labels: readonly string[], added: readonly string[], removed: readonly string[]): string[] {
  return [...new Set([...labels, ...added])].filter((label) => added.includes(label) || !removed.includes(label));
}

function chosenText(count: number, others: number): string {
  return others === 0 ? `${count} selected` : `${count} selected; you can change ${count - others}`;
}
