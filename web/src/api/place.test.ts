import { afterEach, expect, test, vi } from "vitest";
import { apiUrl, isElsewhere } from "./place";

/** Stand in for the browser: the path of the page, and the API that its entry names. */
function standIn(pathname: string, named: string | null): void {
  vi.stubGlobal("location", { pathname });
  vi.stubGlobal("document", { querySelector: () => (named === null ? null : { content: named }) });
}

afterEach(() => vi.unstubAllGlobals());

test.each([["/ui/", ""], ["/ui/index.html", ""], ["/lab/ui/", "/lab"], ["/a/ui/ui/", "/a/ui"], ["/", ""]])(
  "the API of its own page at %s has the prefix %j",
  (path, prefix) => {
    standIn(path, null);
    expect(apiUrl()).toBe(prefix);
    expect(isElsewhere()).toBe(false);
  },
);

test("a page elsewhere uses the API that its entry names", () => {
  standIn("/copy/ui/", "https://lab.example/detcloud/");
  expect(apiUrl()).toBe("https://lab.example/detcloud");
  expect(isElsewhere()).toBe(true);
});
