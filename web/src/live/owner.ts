/** How often to ask for what belongs to an experiment or trial. */

import type { Motion } from "./pace";

/** An experiment or trial, as to whether it goes on. */
export interface Owner {
  state: string;
  ended_ms?: number | null | undefined;
}

/** How an experiment or trial can change. */
export function motionOf({ state }: { state: string }): Motion {
  const isMoving = state === "ACTIVE" || state === "DELETING" || state.startsWith("STOPPING");
  return isMoving ? "moving" : "resting";
}

/** How what belongs to an experiment or trial can change: no more once that has ended. */
export function motionOfParts(owner: { state: string }): Motion {
  return motionOf(owner) === "moving" ? "moving" : "still";
}

/** What is another one after each time that it ran: it may have ended again before the page looked. */
export function markOf({ state, ended_ms: ended }: Owner): string {
  return `${state} ${ended}`;
}
