import { expect, test } from "vitest";
import { applies } from "./applicable";

const VERBS = ["pause", "activate", "cancel", "kill", "archive", "unarchive", "delete", "move", "label"] as const;
const of = (state: string, archived = false) => VERBS.filter((verb) => applies(verb, { state, archived }));

test("each state has its actions", () => {
  expect(of("ACTIVE")).toEqual(["pause", "cancel", "kill", "move", "label"]);
  expect(of("PAUSED")).toEqual(["activate", "cancel", "kill", "move", "label"]);
  expect(of("STOPPING_CANCELED")).toEqual(["kill", "move", "label"]);
  expect(of("STOPPING_KILLED")).toEqual(["move", "label"]);
  expect(of("COMPLETED")).toEqual(["archive", "delete", "move", "label"]);
  expect(of("ERROR", true)).toEqual(["unarchive", "delete", "move", "label"]);
  expect(of("DELETE_FAILED")).toEqual(["delete", "move", "label"]);
  expect(of("DELETING")).toEqual([]);
});
