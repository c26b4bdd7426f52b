import { expect, test } from "vitest";
import { href, parseHash } from "./router";

test("an address has its parts and its query", () => {
  const { parts, query } = parseHash("#/trials/7/logs?search=a%20b&rank=1");
  expect(parts).toEqual(["trials", "7", "logs"]);
  expect([query.get("search"), query.get("rank")]).toEqual(["a b", "1"]);
});

test("names come back as they were, whatever is in them", () => {
  const name = "a/b?c#d %e";
  expect(parseHash(href("pools", name)).parts).toEqual(["pools", name]);
});

test("what cannot be decoded is taken as it is", () => {
  expect(parseHash("#/pools/%zz").parts).toEqual(["pools", "%zz"]);
  expect(parseHash("").parts).toEqual([]);
});
