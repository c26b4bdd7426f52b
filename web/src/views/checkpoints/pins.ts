/** The pins of a checkpoint: what keeps it, and what one may do about that. */

import type { Schemas } from "../../api/client";

export type Holders = Schemas["CheckpointHolders"];
type Who = Schemas["CallerIdentity"];

export function holdersText({ users, versions, experiments }: Holders): string {
  return [
    ...users,
    ...versions.map((version) => `model ${version}`),
    ...experiments.map((id) => `experiment ${id}`),
  ].join(", ");
}

/** What this user may do with the pins that users set; nothing before it is known who it is. */
export function pinActions({ users }: Holders, who: Who | undefined): ("Pin" | "Unpin")[] {
  if (!who) return [];
  const isOwn = users.includes(who.user);
  const mayUnpin = isOwn || (who.role === "admin" && users.length > 0);
  return [...(isOwn ? [] : ["Pin" as const]), ...(mayUnpin ? ["Unpin" as const] : [])];
}

/** Those who lose their pins, besides one's own, when this user unpins: an admin removes all. */
export function othersUnpinned({ users }: Holders, who: Who | undefined): string[] {
  return who?.role === "admin" ? users.filter((user) => user !== who.user) : [];
}
