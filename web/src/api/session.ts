/**
 * The page's half of the session: in this origin's storage, which no other port can read. A page
 * elsewhere has no other half, so that what it keeps is a token: of this tab alone, and gone with it.
 */

import { isElsewhere } from "./place";

const KEY = "detcloud.session-key";
const listeners = new Set<() => void>();

function storage(): Storage {
  return isElsewhere() ? sessionStorage : localStorage;
}

export function sessionKey(): string | null {
  return storage().getItem(KEY);
}

/** The headers by which a request is one of the session. */
export function sessionHeaders(key: string): Record<string, string> {
  return isElsewhere() ? { Authorization: `Bearer ${key}` } : { "X-Session-Key": key };
}

export function keepSession(key: string): void {
  storage().setItem(KEY, key);
  listeners.forEach((listener) => listener());
}

export function forgetSession(): void {
  storage().removeItem(KEY);
  listeners.forEach((listener) => listener());
}

/** Call `listener` when this tab or another signs in or out; returns what ends that. */
export function onSessionChange(listener: () => void): () => void {
  const onStorage = (event: StorageEvent) => event.key === KEY && listener();
  listeners.add(listener);
  window.addEventListener("storage", onStorage);
  return () => {
    listeners.delete(listener);
    window.removeEventListener("storage", onStorage);
  };
}
