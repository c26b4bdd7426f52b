/** The command palette: every view, and the experiment or trial of a number. */

import { useState } from "preact/hooks";
import { Dialog } from "../parts/dialog";
import { href } from "./router";
import { VIEWS } from "./navigation";

interface Command {
  title: string;
  href: string;
}

/** The commands that a text means: those with all of its words, and what has its number. */
export function findCommands(text: string): Command[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const number = words.find((word) => /^\d{1,12}$/.test(word));
  const numbered = number
    ? [
        { title: `Experiment ${number}`, href: href("experiments", number) },
        { title: `Trial ${number}`, href: href("trials", number) },
      ]
    : [];
  const named = words.filter((word) => word !== number);
  const views = number ? [] : VIEWS.map(({ title, path }) => ({ title, href: href(...path) }));
  return [...numbered, ...views].filter(({ title }) =>
    named.every((word) => title.toLowerCase().includes(word)),
  );
}

export function Palette({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [place, setPlace] = useState(0);
  const commands = findCommands(text);

  function open(command: Command | undefined): void {
    if (!command) return;
    location.hash = command.href;
    onClose();
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
      <input autofocus class="wide" role="combobox" aria-label="view, or number of an experiment or trial"
        aria-expanded="true" aria-controls="commands" aria-activedescendant={`command-${place}`}
        value={text} onKeyDown={onKey}
        onInput={(event) => { setText(event.currentTarget.value); setPlace(0); }} />
      <ul id="commands" role="listbox" aria-label="commands" class="commands">
        {commands.map((command, n) => (
          <li key={command.title} id={`command-${n}`} role="option" aria-selected={n === place}
            onClick={() => open(command)}>
            {command.title}
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
