/** The tree of a family: how deep each member stands, and what its fork changed. */

import type { Schemas } from "../../api/client";
import { valueText } from "../../parts/format";

export type Member = Schemas["FamilyMember"];

/** The number of originals above each member, by id. Originals precede their forks. */
export function depthsOf(members: Pick<Member, "id" | "forked_from">[]): Map<number, number> {
  const depths = new Map<number, number>();
  for (const { id, forked_from: original } of members) {
    depths.set(id, original === null ? 0 : (depths.get(original) ?? -1) + 1);
  }
  return depths;
}

/** The changes of a fork, such as `lr: 0.1 → 0.01`. */
export function changesText(member: Pick<Member, "forked_from" | "differences" | "differences_left_out" | "has_other_code">): string {
  const { forked_from: original, differences, differences_left_out: more, has_other_code: hasOtherCode } = member;
  if (!differences) return original === null ? "" : `fork of experiment ${original}`;
  const changes = differences.map(({ path, before, after }) =>
    `${path.replace(/^hyperparameters\./, "")}: ${shown(before)} → ${shown(after)}`);
  const parts = [...changes, ...(more ? [`${more} more`] : []), ...(hasOtherCode ? ["other code"] : [])];
  return parts.join(", ") || "nothing";
}

function shown(value: unknown): string {
  return value === null || value === undefined ? "unset" : valueText(value);
}
