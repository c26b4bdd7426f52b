/** The bar with the views, who is signed in, and the keys that go to a view. */

import { useEffect, useState } from "preact/hooks";
import { send, type Schemas } from "../api/client";
import { forgetSession } from "../api/session";
import { forgetDrafts } from "../parts/kept_draft";
import { useCurrentInSight } from "../parts/tabs";
import { Palette } from "./palette";
import { Shortcuts } from "./shortcuts";
import { href } from "./router";
import { goToSearch } from "./search_key";
import { applyTheme, chosenTheme, followingTheme } from "./theme";
import { VIEWS } from "./view_list";

interface Props {
  /** Undefined until the cluster has told. */
  who: Schemas["CallerIdentity"] | undefined;
  current: string;
}

export function Navigation({ who, current }: Props) {
  const [opened, setOpened] = useState<"palette" | "shortcuts" | null>(null);
  const [theme, setTheme] = useState(chosenTheme());
  const bar = useCurrentInSight(current);
  useShortcuts(setOpened);

  async function signOut(): Promise<void> {
    try {
      await send("delete", "/api/v1/sessions/current");
    } finally {
      forgetDrafts();
      forgetSession();
    }
  }

  function changeTheme(): void {
    const next = followingTheme(theme);
    applyTheme(next);
    setTheme(next);
  }

  return (
    <header>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        To the content
      </a>
      <nav ref={bar} aria-label="views">
        {VIEWS.map(({ title, short, path, key }) => (
          <a key={key} href={href(...path)} title={`${title} (g ${key})`}
            aria-current={current === path[0] ? "page" : isBelow(current, path[0]!) ? "true" : undefined}>
            {short ?? title}
          </a>
        ))}
      </nav>
      <div class="who">
        <button onClick={() => setOpened("palette")} title="Ctrl K">Go to …</button>
        <button onClick={changeTheme} aria-label={`colours: ${theme}`}>◐ {theme}</button>
        {who && <span>{who.user} ({who.role})</span>}
        <button onClick={() => setOpened("shortcuts")} aria-label="keyboard shortcuts" title="keyboard shortcuts">?</button>
        <button onClick={() => void signOut()}>Sign out</button>
      </div>
      {opened === "palette" && (
        <Palette onClose={() => setOpened(null)} others={[
          { title: `Colours: ${followingTheme(theme)}`, run: changeTheme },
          { title: "Keyboard shortcuts", run: () => setOpened("shortcuts") },
          { title: "Sign out", run: () => void signOut() },
        ]} />
      )}
      {opened === "shortcuts" && <Shortcuts onClose={() => setOpened(null)} />}
    </header>
  );
}

/** Ctrl K opens the palette; the others are no shortcuts where one types. */
function useShortcuts(open: (window: "palette" | "shortcuts") => void): void {
  useEffect(() => {
    let isGoing = false;
    function onKey(event: KeyboardEvent): void {
      const target = event.target as HTMLElement;
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        open("palette");
        return;
      }
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (target.closest("input, textarea, select, dialog")) return;
      if (event.key === "?") open("shortcuts");
      if (event.key === "/") {
        event.preventDefault();
        goToSearch();
      }
      const view = isGoing ? VIEWS.find(({ key }) => key === event.key) : undefined;
      isGoing = event.key === "g";
      if (view) location.hash = href(...view.path);
    }
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, []);
}

/** Whether a view is reached from that of experiments, and belongs to none other of the bar. */
function isBelow(current: string, above: string): boolean {
  return above === "experiments" && ["trials", "compare"].includes(current);
}
