import { expect, test } from "vitest";
import { holdersText, othersUnpinned, pinActions } from "./pins";

const heldBy = (...users: string[]) => ({ users, versions: [], experiments: [] });
const [ada, admin] = [{ user: "ada", role: "user" }, { user: "root", role: "admin" }] as const;

test("what keeps a checkpoint is named by what it is", () => {
  const holders = { users: ["ada", "bob"], versions: ["digits/3"], experiments: [7] };
  expect(holdersText(holders)).toBe("ada, bob, model digits/3, experiment 7");
  expect(holdersText(heldBy())).toBe("");
});

test("a user pins, and unpins what is their own", () => {
  expect(pinActions(heldBy(), ada)).toEqual(["Pin"]);
  expect(pinActions(heldBy("bob"), ada)).toEqual(["Pin"]);
  expect(pinActions(heldBy("bob", "ada"), ada)).toEqual(["Unpin"]);
  expect(othersUnpinned(heldBy("bob", "ada"), ada)).toEqual([]);
  expect(pinActions(heldBy(), undefined)).toEqual([]);
});

test("an admin unpins for all, which takes the pins of others", () => {
  expect(pinActions(heldBy("bob"), admin)).toEqual(["Pin", "Unpin"]);
  expect(pinActions(heldBy("root"), admin)).toEqual(["Unpin"]);
  expect(pinActions(heldBy(), admin)).toEqual(["Pin"]);
  expect(othersUnpinned(heldBy("bob", "root"), admin)).toEqual(["bob"]);
});
