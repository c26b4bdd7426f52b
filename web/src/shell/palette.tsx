/** The command palette: every view, what has a number or a name, and what the bar does. */

import { useState } from "preact/hooks";
import { get } from "../api/client";
import { useLive } from "../live/use_live";
import { Dialog } from "../parts/dialog";
import { shortText } from "../parts/format";
import { href } from "./router";
import { VIEWS } from "./view_list";

export interface Command {
  title: string;
  /** Where it leads, or what it does. */
  href?: string;
  run?: () => void;
}

// A name is searched for once so many characters of it are there.
const NAME_MIN = 2;
const FOUND_MAX = 6;
// The cluster has at most as many reports.
const REPORTS_MAX = 500;
// Of the typing, before the cluster is asked.
const PAUSE_MS = 250;
const TITLES = { experiment: "Experiment", command: "Command", notebook: "Notebook", shell: "Shell" };

/** The commands that a text means: those with all of its words, and what has its number. */
export function findCommands(text: string, others: Command[] = []): Command[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const number = words.find((word) => /^\d{1,12}$/.test(word));
  const numbered = number
    ? [
        { title: `Experiment ${number}`, href: href("experiments", number) },
        { title: `Trial ${number}`, href: href("trials", number) },
        // They share the numbers of experiments: offered where one asks for them.
        ...(words.length > 1 ? [{ title: `Command or notebook ${number}`, href: href("commands", number) }] : []),
      ]
    : [];
  const named = words.filter((word) => word !== number);
  const views = number ? [] : [...VIEWS.map(({ title, path }) => ({ title, href: href(...path) })), ...others];
  return [...numbered, ...views].filter(({ title }) =>
    named.every((word) => title.toLowerCase().includes(word)),
  );
}

export function Palette({ others, onClose }: { others: Command[]; onClose: () => void }) {
  const [text, setText] = useState("");
  const [place, setPlace] = useState(0);
  const { found, isSearching } = useFound(text.trim());
  // What is found by name comes behind what is there at once, so that nothing moves below a finger.
  const commands = [...findCommands(text, others), ...found];

  function open(command: Command | undefined): void {
    if (!command) return;
    onClose();
    if (command.href) location.hash = command.href;
    command.run?.();
  }

  function onKey(event: KeyboardEvent): void {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) setPlace((place + move + commands.length) % Math.max(1, commands.length));
    else if (event.key === "Enter") open(commands[place]);
    else return;
    event.preventDefault();
  }

  return (
    <Dialog title="Go to" onClose={onClose}>
      <input autofocus class="wide" role="combobox" aria-label="view, number, or name of an experiment, command, model or report"
        placeholder="a view, a number, or a name" aria-expanded="true" aria-controls="commands" aria-activedescendant={`command-${place}`}
        value={text} onKeyDown={onKey}
        onInput={(event) => { setText(event.currentTarget.value); setPlace(0); }} />
      <ul id="commands" role="listbox" aria-label="commands" class="commands">
        {commands.map((command, n) => (
          <li key={`${command.title} ${command.href}`} id={`command-${n}`} role="option" aria-selected={n === place}
            onClick={() => open(command)}>
            {command.title}
          </li>
        ))}
      </ul>
      <p class="quiet" role="status">{isSearching ? "Searching …" : commands.length === 0 && "Nothing has this name or number."}</p>
    </Dialog>
  );
}

/** The reports whose titles have the text. The cluster lists reports without a filter. */
export function foundReports(reports: readonly { id: number; title: string }[], text: string): Command[] {
  const wanted = text.toLowerCase();
  return reports
    .filter(({ title }) => title.toLowerCase().includes(wanted))
    .slice(0, FOUND_MAX)
    .map(({ id, title }) => ({ title: `Report ${id}: ${shortText(title, 80)}`, href: href("reports", id) }));
}

/** The experiments, commands, notebooks, shells, models and reports whose names have the text. */
function useFound(text: string): { found: Command[]; isSearching: boolean } {
  const isName = text.length >= NAME_MIN && !/^\d+$/.test(text);
  const live = useLive(`found ${text}`, async (signal): Promise<Command[]> => {
    if (!isName) return [];
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    signal.throwIfAborted();
    const query = { name: text, limit: FOUND_MAX };
    const [experiments, models, reports] = await Promise.all([
      get("/api/v1/experiments", { query: { ...query, archived: "all", kind: "all" }, signal }),
      get("/api/v1/models", { query, signal }),
      get("/api/v1/reports", { query: { limit: REPORTS_MAX }, signal }),
    ]);
    return [
      ...experiments.items.map(({ id, kind, name }) => ({ title: `${TITLES[kind]} ${id}: ${shortText(name, 80)}`, href: href(kind === "experiment" ? "experiments" : "commands", id!) })),
      ...models.items.map(({ name }) => ({ title: `Model ${name}`, href: href("models", name) })),
      ...foundReports(reports.items, text),
    ];
  }, () => "still");
  return { found: live.value ?? [], isSearching: isName && !live.value && !live.error };
}
