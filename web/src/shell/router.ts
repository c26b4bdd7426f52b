/** Addresses behind the `#`: they work from any server of files, and reach no server's log. */

import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";

export interface Route {
  parts: string[];
  query: URLSearchParams;
}

export function parseHash(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decodePart);
  return { parts, query: new URLSearchParams(query) };
}

function decodePart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** What names the view of a route: with another one the view is built again. */
export function viewOf({ parts }: Route): string {
  return parts.slice(0, 2).join("/");
}

/** The address of a view: `href("trials", 3)` is `#/trials/3`. */
export function href(...parts: (string | number)[]): string {
  return `#/${parts.map((part) => encodeURIComponent(String(part))).join("/")}`;
}

/** Settings that a part of a view has for itself, such as those of a chart in a report. */
export interface Settings {
  query: URLSearchParams;
  set: (changes: Record<string, string | null>) => void;
}

/** Null where settings are those of the address. */
export const SettingsContext = createContext<Settings | null>(null);

/** The address, with the settings of the part of the view in place of the address's own. */
export function useRoute(): Route {
  const address = useAddress();
  const own = useContext(SettingsContext);
  return own ? { ...address, query: own.query } : address;
}

/** What changes the settings that `useRoute` has. */
export function useSetQuery(): Settings["set"] {
  return useContext(SettingsContext)?.set ?? setQuery;
}

export function useAddress(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const onChange = () => setHash(location.hash);
    window.addEventListener("hashchange", onChange);
    return () => window.removeEventListener("hashchange", onChange);
  }, []);
  return parseHash(hash);
}

/** Keep a view's settings in its address; null takes one out. Makes no step of the history. */
export function setQuery(changes: Record<string, string | null>): void {
  const { query } = parseHash(location.hash);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const path = location.hash.split("?", 1)[0] || "#/";
  history.replaceState(null, "", query.size ? `${path}?${query}` : path);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
