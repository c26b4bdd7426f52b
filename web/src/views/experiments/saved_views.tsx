/** Saved views of the list: the filter, the columns, the order and the grouping, own or shared. */

import { useState } from "preact/hooks";
import { collect, get, send, type Schemas } from "../../api/client";
import { Action, FormDialog } from "../../parts/dialog";
import { messageOf } from "../../parts/format";
import { mayChange, useWho } from "../../shell/who";

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

  async function save(name: string, shared: boolean): Promise<void> {
    await send("put", ROUTE, { path: { name }, body: { ...current, shared } as Schemas["ViewBody"] });
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
          {views.map((view) => (
            <li key={`${view.user}/${view.name}`}>
              <button aria-pressed={view === active} onClick={() => onOpen(view)}>{view.name}</button>{" "}
              <span class="quiet">{view.user === who?.user ? (view.shared ? "shared" : "") : `by ${view.user}`}</span>
              {mayChange(who, view.user) && <Action label="Delete" question={`Delete the view ${view.name}?`} run={() => remove(view)} />}
            </li>
          ))}
        </ul>
      )}
      <button onClick={() => setSaves(true)}>Save view</button>
      {saves && <SaveDialog views={(views ?? []).filter(({ user }) => user === who?.user)} save={save} onClose={() => setSaves(false)} />}
    </details>
  );
}

interface SaveProps {
  /** This user's views. */
  views: View[];
  save: (name: string, shared: boolean) => Promise<void>;
  onClose: () => void;
}

function SaveDialog({ views, save, onClose }: SaveProps) {
  const [name, setName] = useState("");
  const [shared, setShared] = useState(false);
  const isKnown = views.some((view) => view.name === name.trim());
  return (
    <FormDialog title="Save view" action={isKnown ? "Replace" : "Save"} submit={() => save(name.trim(), shared)} onClose={onClose}>
      <label>Name <input class="wide" required maxLength={64} pattern="[^\/.][^\/]*" title="no / and no dot at the start" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
      <label><input type="checkbox" checked={shared} onChange={(event) => setShared(event.currentTarget.checked)} /> Show this view to all users of the cluster</label>
      <p class="quiet">A view keeps the filter, the columns, the order and the grouping.{isKnown ? " Your view with this name is replaced." : ""}</p>
    </FormDialog>
  );
}

function isSame(view: ViewContent, other: ViewContent): boolean {
  const textOf = ({ filter, columns, sort, order, group }: ViewContent) => JSON.stringify([filter, columns, sort, order, group]);
  return textOf(view) === textOf(other);
}
