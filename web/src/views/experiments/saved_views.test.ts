import { expect, test } from "vitest";
import { audienceText, viewsInOrder } from "./saved_views";

test("the views of the shown workspace come first", () => {
  const views = ["", "Audio", "Vision", "", "Vision"].map((workspace, id) => ({ id, workspace }));
  expect(viewsInOrder(views, "Vision").map(({ id }) => id)).toEqual([2, 4, 0, 1, 3]);
  expect(viewsInOrder(views, "").map(({ id }) => id)).toEqual([0, 1, 2, 3, 4]);
});

test("a view says who sees it and whose it is", () => {
  expect(audienceText({ user: "ada", shared: false, workspace: "" }, "ada")).toBe("");
  expect(audienceText({ user: "ada", shared: true, workspace: "" }, "ada")).toBe("shared");
  expect(audienceText({ user: "bob", shared: true, workspace: "" }, "ada")).toBe("by bob");
  expect(audienceText({ user: "bob", shared: false, workspace: "Vision" }, "ada")).toBe("workspace Vision, by bob");
});
