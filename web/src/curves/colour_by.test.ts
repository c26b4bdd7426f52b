import { expect, test } from "vitest";
import { BY_GROUP, BY_METRIC, colouringOf, factsOf, namesToColourBy } from "./colour_by";

const curve = (label: string, hparams: Record<string, unknown>, metric: number | null = null, group?: string) =>
  ({ label, points: [], hparams, metric, ...(group && { group }) });

test("curves may be coloured by what differs", () => {
  expect(namesToColourBy([curve("1", { lr: 0.1, layers: 2 }), curve("2", { lr: 0.2, layers: 2 })])).toEqual(["lr"]);
});

test("the best metric has the strongest colour, whichever way is better", () => {
  const curves = [curve("1", {}, 1), curve("2", {}, 3), curve("3", {}, null)];
  expect(colouringOf(curves, BY_METRIC)).toEqual({ paints: [{ scale: 1 }, { scale: 0 }, { group: 7 }], scale: { low: 3, high: 1, isLog: false } });
  expect(colouringOf(curves.map((one) => ({ ...one, isLess: false })), BY_METRIC).paints[1]).toEqual({ scale: 1 });
});

test("numbers over two decades are coloured by their logarithm", () => {
  const curves = [1e-4, 1e-3, 1e-2].map((lr) => curve(String(lr), { lr }));
  const { paints, scale } = colouringOf(curves, "hp.lr");
  expect(paints).toEqual([{ scale: 0 }, { scale: expect.closeTo(0.5, 12) }, { scale: 1 }]);
  expect(scale).toEqual({ low: 1e-4, high: 1e-2, isLog: true });
});

test("a hyperparameter with a logarithmic scale is coloured by its logarithm", () => {
  const curves = [1, 2, 4].map((width) => ({ ...curve(String(width), { width }), logs: ["width"] }));
  expect(colouringOf(curves, "hp.width").paints[1]).toEqual({ scale: expect.closeTo(0.5, 12) });
  expect(colouringOf(curves, "hp.width").scale?.isLog).toBe(true);
});

test("texts have a colour each, and a missing value is grey", () => {
  const curves = [curve("1", { opt: "sgd" }), curve("2", { opt: "adam" }), curve("3", {})];
  expect(colouringOf(curves, "hp.opt")).toEqual({ paints: [{ group: 1 }, { group: 0 }, { group: 7 }], groups: ["adam", "sgd"] });
});

test("curves of a group share a colour, and an unknown name colours nothing", () => {
  const curves = [curve("1", {}, null, "experiment 2"), curve("2", {}, null, "experiment 10")];
  expect(colouringOf(curves, BY_GROUP).groups).toEqual(["experiment 2", "experiment 10"]);
  expect(colouringOf(curves, "hp.none").paints).toEqual([undefined, undefined]);
  expect(colouringOf(curves, null).paints).toEqual([undefined, undefined]);
});

test("facts name the values of a trial", () => {
  expect(factsOf({ lr: 0.0125, name: "a" }, ["name", "lr", "none"])).toEqual([["name", "a"], ["lr", "0.0125"]]);
});
