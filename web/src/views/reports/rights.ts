/** Who may do what with a report. */

import type { Schemas } from "../../api/client";
import { mayChange, type Who } from "../../shell/who";

type Report = Pick<Schemas["ReportSummary"], "user" | "sharing">;

export const SHARINGS = { private: "only you and admins can read it", read: "all users can read it", edit: "all users can read and change it" } as const;
export type Sharing = keyof typeof SHARINGS;

/** Whether this user may change the title and the text. */
export function mayWrite(who: Who | undefined, { user, sharing }: Report): boolean {
  return mayChange(who, user) || (who !== undefined && sharing === "edit");
}
