/** The user's menu: tokens, colours, shortcuts, and the end of the session. */

import { useState } from "preact/hooks";
import { send } from "../api/client";
import { forgetSession } from "../api/session";
import { forgetDrafts } from "../parts/kept_draft";
import { href } from "./router";
import { applyTheme, chosenTheme, followingTheme } from "./theme";
import { TOKENS } from "./view_list";
import type { Who } from "./who";

const MENU = "user-menu";

/** End the session on the cluster, and forget what this page keeps of it. */
export async function signOut(): Promise<void> {
  try {
    await send("delete", "/api/v1/sessions/current");
  } finally {
    forgetDrafts();
    forgetSession();
  }
}

interface Props {
  /** Undefined until the cluster has told. */
  who: Who | undefined;
  openShortcuts: () => void;
}

export function UserMenu({ who, openShortcuts }: Props) {
  const [theme, setTheme] = useState(chosenTheme());
  const name = who?.user ?? "…";

  function changeTheme(): void {
    const next = followingTheme(theme);
    applyTheme(next);
    setTheme(next);
  }

  function close(): void {
    document.getElementById(MENU)?.hidePopover();
  }

  return (
    <>
      <button class="user" popovertarget={MENU} aria-label={`menu of ${name}`} title={who && `${who.user} (${who.role})`}>
        {name.slice(0, 1).toUpperCase()}
      </button>
      <div id={MENU} popover="auto" class="menu">
        {who && <p><strong>{who.user}</strong><br /><span class="quiet">{who.role}</span></p>}
        <a href={href(...TOKENS.path)} onClick={close}>{TOKENS.title}</a>
        <button onClick={changeTheme} aria-label={`colours: ${theme}`}>Colours: {theme}</button>
        <button onClick={() => { close(); openShortcuts(); }}>Keyboard shortcuts</button>
        <button onClick={() => void signOut()}>Sign out</button>
      </div>
    </>
  );
}
