/** Saved views of the list: the filter, the columns, the order and the grouping; own, of a workspace or of all users. */

import { useState } from "preact/hooks";
import { collect, get, send, type Schemas } from "../../api/client";
import { Action, FormDialog } from "../../parts/dialog";
import { messageOf } from "../../parts/format";
import { mayChange, useWho } from "../../shell/who";
import { workspaceOf } from "./filter_text";

type View = Schemas["ExperimentView"];
/** What a view keeps. */
export type ViewContent = Pick<View, "filter" | "columns" | "sort" | "order" | "group">;

interface Props {
  current: ViewContent;
  onOpen: (view: ViewContent) => void;
}

const ROUTE = "/api/v1/experiment-views/{name}";

export function SavedViews({ current, onOpen }: Props) {
  const who = useWho();
  const [views, setViews] = useState<View[] | null>(null);
  const [error, setError] = useState("");
  const [saves, setSaves] = useState(false);
  const active = views?.find((view) => isSame(view, current));

  // When the menu is opened, not before: most visits need no views.
  async function load(): Promise<void> {
    setError("");
    try {
      setViews((await collect((cursor) => get("/api/v1/experiment-views", { query: { limit: 500, cursor } }))).items);
    } catch (failure) {
      setError(messageOf(failure));
    }
  }

  async function save(name: string, audience: Audience): Promise<void> {
    const saved = await send("put", ROUTE, { path: { name }, body: { ...current, ...audience } as Schemas["ViewBody"] });
    // The cluster narrows the filter of a workspace's view to the workspace.
    onOpen(saved);
    await load();
  }

  async function remove(view: View): Promise<void> {
    const query = view.user === who?.user ? {} : { user: view.user };
    await send("delete", ROUTE, { path: { name: view.name }, query });
    await load();
  }

  return (
    <details class="panel" onToggle={(event) => event.currentTarget.open && void load()}>
      <summary>{active ? `View: ${active.name}` : "Views"}</summary>
      {error && <p class="failure" role="alert">{error}</p>}
      {views?.length === 0 && <p class="quiet">No saved views yet.</p>}
      {views && views.length > 0 && (
        <ul aria-label="Saved views">
          {viewsInOrder(views, workspaceOf(current.filter)).map((view) => (
            <li key={`${view.user}/${view.name}`}>
              <button aria-pressed={view === active} onClick={() => onOpen(view)}>{view.name}</button>{" "}
              <span class="quiet">{audienceText(view, who?.user)}</span>{" "}
              {mayChange(who, view.user) && <Action label="Delete" question={`Delete the view ${view.name}?`} run={() => remove(view)} />}
            </li>
          ))}
        </ul>
      )}
      <button onClick={() => setSaves(true)}>Save view</button>
      {saves && (
        <SaveDialog views={(views ?? []).filter(({ user }) => user === who?.user)} workspace={workspaceOf(current.filter)}
          save={save} onClose={() => setSaves(false)} />
      )}
    </details>
  );
}

/** Who sees a view besides its owner. */
type Audience = Pick<Schemas["ExperimentView"], "shared" | "workspace">;

/** The views of the workspace first, which the list shows already. */
export function viewsInOrder<T extends { workspace: string }>(views: readonly T[], workspace: string): T[] {
  const isFirst = (view: T) => workspace !== "" && view.workspace === workspace;
  return [...views.filter(isFirst), ...views.filter((view) => !isFirst(view))];
}

/** Who sees a view, and whose it is if it belongs to another user than `me`. */
export function audienceText({ user, shared, workspace }: Pick<View, "user" | "shared" | "workspace">, me: string | undefined): string {
  const audience = workspace ? `workspace ${workspace}` : shared && user === me ? "shared" : "";
  return [audience, user === me ? "" : `by ${user}`].filter(Boolean).join(", ");
}

interface SaveProps {
  /** This user's views. */
  views: View[];
  /** The workspace of the list. */
  workspace: string;
  save: (name: string, audience: Audience) => Promise<void>;
  onClose: () => void;
}

function SaveDialog({ views, workspace, save, onClose }: SaveProps) {
  const [name, setName] = useState("");
  const [kind, setKind] = useState<"own" | "workspace" | "cluster">("own");
  const [group, setGroup] = useState(workspace);
  const isKnown = views.some((view) => view.name === name.trim());
  const audience = { shared: kind === "cluster", workspace: kind === "workspace" ? group.trim() : "" };
  return (
    <FormDialog title="Save view" action={isKnown ? "Replace" : "Save"} submit={() => save(name.trim(), audience)} onClose={onClose}>
      <label>Name <input class="wide" required maxLength={64} pattern="[^\/.][^\/]*" title="no / and no dot at the start" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
      <label>For{" "}
        <select value={kind} onChange={(event) => setKind(event.currentTarget.value as typeof kind)}>
          <option value="own">me</option>
          <option value="workspace">a workspace</option>
          <option value="cluster">all users of the cluster</option>
        </select>
      </label>
      {kind === "workspace" && <label>Workspace <input required maxLength={128} value={group} onInput={(event) => setGroup(event.currentTarget.value)} /></label>}
      {kind === "workspace" && <p class="quiet">All users see the view among the views of the workspace. Its list has experiments of the workspace only.</p>}
      <p class="quiet">A view keeps the filter, the columns, the order and the grouping.{isKnown ? " Your view with this name is replaced." : ""}</p>
    </FormDialog>
  );
}

function isSame(view: ViewContent, other: ViewContent): boolean {
  const textOf = ({ filter, columns, sort, order, group }: ViewContent) => JSON.stringify([filter, columns, sort, order, group]);
  return textOf(view) === textOf(other);
}
