/**
 * The page's half of the session: in this origin's storage, which no other port can read. A page
 * elsewhere has no other half, so that what it keeps is a token: of this tab alone, and gone with it.
 */

import { isElsewhere } from "./place";

const KEY = "detcloud.session-key";
const PLACE_KEY = "detcloud.place";
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

/** End a session that the cluster no longer accepts, and keep the address of the view for the next sign-in. */
export function expireSession(): void {
  storage().setItem(PLACE_KEY, location.hash);
  forgetSession();
}

/** The address of the view in which the last session expired, once; the start page without such a view. */
export function takePlace(): string {
  const place = storage().getItem(PLACE_KEY);
  storage().removeItem(PLACE_KEY);
  return place?.startsWith("#/") ? place : "#/home";
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
