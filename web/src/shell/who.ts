/** Who is signed in, and what that allows: what the cluster would refuse is not offered. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Schemas } from "../api/client";

export type Who = Schemas["CallerIdentity"];

/** Undefined until the cluster has told. */
export const WhoContext = createContext<Who | undefined>(undefined);

export function useWho(): Who | undefined {
  return useContext(WhoContext);
}

export function useIsAdmin(): boolean {
  return useWho()?.role === "admin";
}

/** Whether this user may delete what is `owner`'s: their own, and an admin anything. */
export function mayDelete(who: Who | undefined, owner: string): boolean {
  return who !== undefined && (who.role === "admin" || who.user === owner);
}
