import { expect, test } from "vitest";
import { filterOf, hasValue, isComplete, splitTerms, termAt, toggleValue, withoutTerm, workspaceOf } from "./filter_text";

const of = (query: string) => filterOf(new URLSearchParams(query));

test("white space in quotes belongs to a term", () => {
  const terms = splitTerms('state:running  label:"two words" "a \\" b"');
  expect(terms.map(({ text }) => text)).toEqual(["state:running", 'label:"two words"', '"a \\" b"']);
  expect(terms.map(({ start }) => start)).toEqual([0, 15, 33]);
});

test("a removed term leaves the others", () => {
  const text = "lr>0.01 lr>0.01 user:me";
  expect(withoutTerm(text, splitTerms(text)[1]!)).toBe("lr>0.01 user:me");
});

test("a value is added to its key and removed again", () => {
  expect(toggleValue("loss", "state", "failed")).toBe("loss state:failed");
  expect(toggleValue("state:failed loss", "state", "running")).toBe("loss state:failed,running");
  expect(toggleValue("loss state:failed,running", "state", "failed")).toBe("loss state:running");
  expect(toggleValue("loss state:running", "state", "running")).toBe("loss");
  expect(hasValue("state:failed,running", "state", "running")).toBe(true);
  expect(hasValue("-state:running", "state", "running")).toBe(false);
});

test("the workspace of a filter is the only one that it names", () => {
  expect(workspaceOf('lr>0.01 workspace:"my vision"')).toBe("my vision");
  expect(workspaceOf("workspace:Vision user:me")).toBe("Vision");
  expect(workspaceOf("workspace:Vision,Audio")).toBe("");
  expect(workspaceOf("-workspace:Vision")).toBe("");
});

test("parameters of older links are terms", () => {
  expect(of("name=two+words&state=ACTIVE,PAUSED")).toBe('name:"two words" state:ACTIVE,PAUSED');
  expect(of("filter=lr%3E0.01&user=bob&metadata=data.version%3D3")).toBe("lr>0.01 user:bob metadata:data.version=3");
  expect(of("")).toBe("");
});

test("the cluster counts characters, also those of two units", () => {
  expect(termAt("name:🙂 lr>x", 11)?.text).toBe("lr>x");
  expect(termAt("lr>x", 1)?.text).toBe("lr>x");
  expect(termAt("state:", 7)?.text).toBe("state:");
});

test("an unfinished term is not sent while it is typed", () => {
  for (const text of ["state:", "metric:los", "metric:loss<", '"two wo', "-", "lr!"]) expect(isComplete(text)).toBe(false);
  for (const text of ["dig", "state:running", "metric:loss<0.3", ""]) expect(isComplete(text)).toBe(true);
});
