/** Who is signed in, and what that allows: what the cluster would refuse is not offered. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { get, type Schemas } from "../api/client";
import { useLive } from "../live/use_live";

export type Who = Schemas["CallerIdentity"];

/** Undefined until the cluster has told. */
export const WhoContext = createContext<Who | undefined>(undefined);

export function useWho(): Who | undefined {
  return useContext(WhoContext);
}

export function useIsAdmin(): boolean {
  return useWho()?.role === "admin";
}

/** Return whether this user may change and delete an object of `owner`. Admins may change every object. */
export function mayChange(who: Who | undefined, owner: string): boolean {
  return who !== undefined && (who.role === "admin" || who.user === owner);
}

export interface Right {
  mayChange: boolean;
  /** The owner's name, or an empty text until the cluster has answered. */
  owner: string;
}

/** Return whether this user may change the trials and checkpoints of an experiment. Its owner never changes. */
export function useExperimentRight(experimentId: number): Right {
  const who = useWho();
  const { value } = useLive(
    `owner of experiment ${experimentId}`,
    (signal) => get("/api/v1/experiments/{experiment_id}", { path: { experiment_id: experimentId }, signal }),
    () => "still",
  );
  return { mayChange: value !== undefined && mayChange(who, value.user), owner: value?.user ?? "" };
}
