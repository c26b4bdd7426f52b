/** Checkpoints of an experiment or trial, with their files to download, to pin, to register and to delete. */

import { useState } from "preact/hooks";
import { collect, get, send, type Schemas } from "../../api/client";
import { markOf, motionOfParts, type Owner } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { Action } from "../../parts/dialog";
import { bytesText, numberText } from "../../parts/format";
import { Badge, Empty, Moment, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href, setQuery, useRoute } from "../../shell/router";
import { useWho, type Who } from "../../shell/who";
import { RegisterDialog } from "../models/register_dialog";
import { FilesDialog } from "./files_dialog";
import { holdersText, othersUnpinned, pinActions, type Holders } from "./pins";

type Checkpoint = Schemas["Checkpoint"];

interface Props {
  of: "experiments" | "trials";
  id: number;
  /** Whether the cluster lets the viewer delete these checkpoints and clear their damage marks. */
  mayChange: boolean;
  /** The experiment or trial. */
  owner: Owner;
}

type ChangeAction = "Pin" | "Unpin" | "Delete" | "Not damaged";

const CHECKPOINTS_MAX = 1000;
const STATES_WITH_FILES: Checkpoint["state"][] = ["COMPLETED", "DAMAGED", "PARTIALLY_DELETED"];

export function CheckpointTable({ of, id, mayChange, owner }: Props) {
  const opened = useRoute().query.get("files");
  const setOpened = (uuid: string | null) => setQuery({ files: uuid });
  const [registered, setRegistered] = useState<string | null>(null);
  const live = useLive(
    `checkpoints of ${of} ${id}`,
    (signal) =>
      collect((cursor) => {
        const query = { limit: 500, cursor };
        return of === "experiments"
          ? get("/api/v1/experiments/{experiment_id}/checkpoints", { path: { experiment_id: id }, query, signal })
          : get("/api/v1/trials/{trial_id}/checkpoints", { path: { trial_id: id }, query, signal });
      }, CHECKPOINTS_MAX),
    ({ items }) => (items.some(({ state }) => state === "DELETING") ? "moving" : motionOfParts(owner)),
    markOf(owner),
  );
  const viewer: Viewer = { who: useWho(), mayChange };
  const change = async (action: ChangeAction, uuid: string) => {
    if (action === "Delete") await send("delete", "/api/v1/checkpoints/{uuid}", { path: { uuid } });
    else if (action === "Not damaged") await send("delete", "/api/v1/checkpoints/{uuid}/damage", { path: { uuid } });
    else await send(action === "Pin" ? "post" : "delete", "/api/v1/checkpoints/{uuid}/pin", { path: { uuid } });
    await live.refresh();
  };
  return (
    <Shown live={live}>
      {({ items, next }) => items.length === 0 ? <Empty>No checkpoints yet.</Empty> : (
        <>
          <Table label="checkpoints" rows={items} rowKey={({ uuid }) => uuid} columns={checkpointColumns(viewer, setOpened, setRegistered, change)} />
          {next && <p class="quiet">The first {items.length} are shown; sorting is among these.</p>}
          {opened && <FilesDialog uuid={opened} onClose={() => setOpened(null)} />}
          {registered && <RegisterDialog uuid={registered} onClose={() => setRegistered(null)} />}
        </>
      )}
    </Shown>
  );
}

interface Viewer extends Pick<Props, "mayChange"> {
  who: Who | undefined;
}

function checkpointColumns(
  { who, mayChange }: Viewer,
  open: (uuid: string) => void,
  register: (uuid: string) => void,
  change: (action: ChangeAction, uuid: string) => Promise<void>,
): Column<Checkpoint>[] {
  return [
    { key: "uuid", title: "Checkpoint", show: ({ uuid }) => <code title={uuid}>{uuid.slice(0, 8)}</code> },
    { key: "trial", title: "Trial", isNumber: true, show: (one) => <a href={href("trials", one.trial_id)}>{one.trial_id}</a>, value: (one) => one.trial_id },
    { key: "steps", title: "Steps", isNumber: true, show: (one) => one.steps_completed, value: (one) => one.steps_completed },
    { key: "state", title: "State", show: (one) => <span title={stateTitle(one)}><Badge state={one.state} /></span>, value: ({ state }) => state },
    { key: "metric", title: "Metric", isNumber: true, show: ({ metric }) => numberText(metric), value: ({ metric }) => metric },
    { key: "size", title: "Size", isNumber: true, show: (one) => bytesText(one.size_bytes), value: (one) => one.size_bytes },
    { key: "created", title: "Created", show: (one) => <><Moment ms={one.created_ms} />{one.uploaded_by && ` uploaded by ${one.uploaded_by}`}</>, value: (one) => one.created_ms },
    { key: "kept", title: "Kept by", show: ({ pinned_by: by }) => holdersText(by), value: ({ pinned }) => pinned },
    {
      key: "actions",
      title: "Actions",
      show: ({ uuid, state, damage, pinned, pinned_by: by }) => STATES_WITH_FILES.includes(state) && (
        <>
          <button onClick={() => open(uuid)}>Files</button>{" "}
          {state === "COMPLETED" && <button onClick={() => register(uuid)}>Register</button>}{" "}
          {mayChange && state === "DAMAGED" && <DamageAction uuid={uuid} damage={damage} run={() => change("Not damaged", uuid)} />}
          {state !== "PARTIALLY_DELETED" && pinActions(by, who).map((action) => <PinAction key={action} action={action} by={by} who={who} run={() => change(action, uuid)} />)}
          {mayChange && <Action label="Delete" disabled={pinned} question={`Delete checkpoint ${uuid}? This cannot be undone.`} run={() => change("Delete", uuid)} />}
        </>
      ),
    },
  ];
}

/** How a checkpoint is damaged, or which of its files were deleted. */
function stateTitle({ damage, deleted_patterns: patterns }: Checkpoint): string | undefined {
  return damage || (patterns.length > 0 ? `deleted: ${patterns.join(", ")}` : undefined);
}

/** Removes the mark of damage, for a user who has read the files: the cluster compares their sizes alone. */
function DamageAction({ uuid, damage, run }: { uuid: string; damage: string; run: () => Promise<void> }) {
  const question = (
    <>
      It was found damaged: {damage || "nobody said how"}. If its files are all right again, <code>detcloud checkpoint verify {uuid}</code> reads
      each of them and takes this back. Here the cluster looks only whether all of them are there with their sizes. Take it back?
    </>
  );
  return <><Action label="Not damaged" question={question} run={run} />{" "}</>;
}

interface PinProps {
  action: "Pin" | "Unpin";
  by: Holders;
  who: Who | undefined;
  run: () => Promise<void>;
}

function PinAction({ action, by, who, run }: PinProps) {
  const others = action === "Unpin" ? othersUnpinned(by, who) : [];
  const question = `This also removes the pins of ${others.join(", ")}. The next garbage collection may delete a checkpoint without pins.`;
  return <><Action label={action} run={run} {...(others.length > 0 && { question })} />{" "}</>;
}
