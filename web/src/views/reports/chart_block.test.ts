import { expect, test } from "vitest";
import { KINDS, chartText, fencedChart, readChart, withSettings, type ChartSpec, type Kind } from "./chart_block";

function problemsOf(text: string, firstLine = 1): string[] {
  return readChart(text, firstLine).problems.map(({ line, text: words }) => `${line}: ${words}`);
}

test("a block says what a chart shows", () => {
  const text = `# of the paper
kind: curves   # the best trials
title: "Rates: all"
experiments: [7, 9]
metric: 'it''s loss'
smooth: 0.5
scale: log
best: false
quantiles: true
colour: hp.lr`;
  expect(readChart(text, 1)).toEqual({
    spec: {
      kind: "curves", title: "Rates: all", experiments: [7, 9], filter: "",
      settings: { metric: "it's loss", smooth: "0.5", scale: "log", quantiles: "1", colour: "hp.lr" },
    },
    problems: [],
  });
});

test("lists stand on one line or on a line for each item, and a single id is a list", () => {
  const columns = JSON.stringify(["name", "metric:loss"]);
  for (const list of ['columns: [name, "metric:loss"]', "columns:\n  - name\n  - metric:loss # validation"]) {
    expect(readChart(`kind: table\nexperiments: 7\n${list}`, 1).spec).toMatchObject({ experiments: [7], settings: { columns } });
  }
});

test("a filter has colons and numbers", () => {
  expect(readChart("kind: history\nfilter: label:baseline lr>0.01", 1).spec?.filter).toBe("label:baseline lr>0.01");
});

test.each([
  ["", "the kind of the chart is missing"],
  ["kind: pie", "no chart has the kind `pie`; expected `kind:` and one of curves, history"],
  ["kind: toString", "no chart has the kind `toString`"],
  ["kind: best", "no experiment is named; expected `experiments: [7, 9]` or `filter: label:baseline`"],
  ["kind: best\nexperiments: 1\nfilter: x", "expected either `experiments` or `filter`, not both"],
  ["kind: best\nexperiments: seven", "`experiments` is `seven`; expected an id, or a list such as `[7, 9]`"],
  ["kind: best\nexperiments: []", "`experiments` is empty"],
  ["kind: best\nexperiments: [7, 9]", "2 experiments are too many for a chart of the kind best; expected one"],
  ["kind: history\nexperiments: 7\nsmooth: 0.5", "a chart of the kind history has no option `smooth`; it has title, experiments, filter, over, scale"],
  ["kind: history\nexperiments: 7\nconstructor: 1", "a chart of the kind history has no option `constructor`"],
  ["kind: curves\nexperiments: 7\nsmooth: 1", "`smooth` is `1`; expected a number from 0 to 0.99"],
  ["kind: curves\nexperiments: 7\ntrials: 1.5", "`trials` is `1.5`; expected a whole number from 1 to 200"],
  ["kind: curves\nexperiments: 7\nbest: 1", "`best` is `1`; expected `true` or `false`"],
  ["kind: curves\nexperiments: 7\nscale: cubic", "`scale` is `cubic`; expected one of linear, log"],
  ["kind: scatter\nexperiments: 7", "a chart of the kind scatter needs `hyperparameter:`"],
  ["kind: best\nexperiments: 7\nexperiments: 8", "`experiments` is there twice"],
  ["kind: best\n experiments: 7", "expected `name: value` at the start of the line, not `experiments: 7`"],
  ["kind: best\nexperiments: [7", "the list has no `]` at its end"],
  ['kind: best\nexperiments: 7\ntitle: "a', "has no valid end quote"],
  ["kind: best\nexperiments: 7\ntitle: *a", "in double quotes: YAML reads `*` at the start as more than text"],
  [`kind: best\nexperiments: 7\ntitle: ${"a".repeat(3000)}`, "the line has 3007 characters; expected at most 2000"],
])("%j is refused in words", (text, words) => {
  expect(readChart(text, 1).spec).toBeNull();
  expect(problemsOf(text).join("\n")).toContain(words);
});

test("an error has its line in the whole report", () => {
  expect(problemsOf("kind: curves\nexperiments: 7\n\nsmoth: 0.5", 11)).toEqual([expect.stringMatching(/^14: .* no option `smoth`/)]);
});

test("what a chart becomes is read as the same chart", () => {
  const spec: ChartSpec = {
    kind: "curves", title: "Loss: \"all\" # 1\n```", experiments: [7, 9], filter: "",
    settings: { metric: "- loss", smooth: "0.25", quantiles: "1", colour: "hp.a b", x: "time" },
  };
  expect(readChart(chartText(spec), 1).spec).toEqual(spec);
  // No title ends the block.
  expect(fencedChart(spec).split("\n").filter((line) => line.startsWith("```"))).toHaveLength(2);
  const plane: ChartSpec = { kind: "contour", title: "", experiments: [7], filter: "", settings: { x: "true", y: "no", plane: "ranks" } };
  expect(readChart(chartText(plane), 1).spec).toEqual(plane);
  const table: ChartSpec = { kind: "table", title: "", experiments: [], filter: "user:me", settings: { columns: '["name","metric:a, b"]' } };
  expect(readChart(chartText(table), 1).spec).toEqual(table);
});

test("another setting changes its line alone", () => {
  const text = "kind: curves # mine\nexperiments: 7\nsmooth: 0.5\nbest: true";
  expect(withSettings(text, "curves", { smooth: "0.7", scale: "log", all: "1" })).toBe("kind: curves # mine\nexperiments: 7\nsmooth: 0.7\nbest: true\nscale: log");
  expect(withSettings(text, "curves", { smooth: null, best: "" })).toBe("kind: curves # mine\nexperiments: 7");
});

test("blocks of hostile texts are read at once", () => {
  const begun = performance.now();
  for (const part of ['"\\', "'", "[", "a: [,", "- \n", "a:\n", 'a: "\n', "# \n"]) readChart(`kind: best\n${part.repeat(65_536 / part.length)}`, 1);
  expect(performance.now() - begun).toBeLessThan(20_000);
});

test("every kind has a title and a number of experiments", () => {
  for (const kind of Object.keys(KINDS) as Kind[]) {
    expect(KINDS[kind].title).toBeTruthy();
    expect(KINDS[kind].many).toBeGreaterThan(0);
  }
});
