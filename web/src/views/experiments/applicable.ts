/** Which actions apply to an experiment in its state. */

export type Verb = "pause" | "activate" | "cancel" | "kill" | "archive" | "unarchive";

interface Subject {
  state: string;
  archived: boolean;
}

const DELETING = ["DELETING", "DELETED"];

/** Return whether the action changes an experiment in this state. */
export function applies(verb: Verb | "delete" | "move" | "label", { state, archived }: Subject): boolean {
  const hasEnded = ["COMPLETED", "CANCELED", "ERROR", "DELETE_FAILED", ...DELETING].includes(state);
  switch (verb) {
    case "pause":
      return state === "ACTIVE";
    case "activate":
      return state === "PAUSED";
    case "cancel":
      return state === "ACTIVE" || state === "PAUSED";
    case "kill":
      return !hasEnded && state !== "STOPPING_KILLED";
    case "archive":
      return ["COMPLETED", "CANCELED", "ERROR"].includes(state) && !archived;
    case "unarchive":
      return archived && !DELETING.includes(state);
    case "delete":
      return hasEnded && !DELETING.includes(state);
    default:
      return !DELETING.includes(state);
  }
}
