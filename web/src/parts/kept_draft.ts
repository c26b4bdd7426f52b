/** What one writes at length, kept in the tab until it was used: over a reload and other views. */

import { useState } from "preact/hooks";

const PREFIX = "detcloud.draft ";

/** The text that was kept under a name, else `first`; whether it was kept; and what keeps another. */
export function useKeptDraft(name: string, first: string) {
  const key = PREFIX + name;
  const [text, setText] = useState(() => sessionStorage.getItem(key) ?? first);
  const [wasKept, setWasKept] = useState(text !== first);
  function keep(next: string): void {
    setText(next);
    if (next === first) drop();
    else sessionStorage.setItem(key, next);
  }
  function drop(): void {
    sessionStorage.removeItem(key);
    setWasKept(false);
  }
  return { text, wasKept, keep, drop };
}

// What a kept text was begun from, under a name of its own.
const BASE = "detcloud.draft from ";

/** Keep what a text was begun from, beside it. */
export function keepBase(name: string, base: string): void {
  sessionStorage.setItem(BASE + name, base);
}

export function keptBase(name: string): string | null {
  return sessionStorage.getItem(BASE + name);
}

export function dropBase(name: string): void {
  sessionStorage.removeItem(BASE + name);
}

/** Whether a text was kept under a name. */
export function isDraftKept(name: string): boolean {
  return sessionStorage.getItem(PREFIX + name) !== null;
}

/** Forget all of them, for a sign-out: there may be secrets in them. */
export function forgetDrafts(): void {
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(PREFIX)) sessionStorage.removeItem(key);
}
