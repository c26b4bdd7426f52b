import { expect, test } from "vitest";
import { changeField, findFields } from "./config_fields";

const TEXT = `name: digits  # a comment
searcher:
  name: random
  max_length: {batches: 100}
  metric: "val loss"
hyperparameters:
  # The rate of the optimizer.
  lr: 1e-3 # small
  optimizer:
    name: 'it''s'
  width: {type: int, minval: 8, maxval: 64}
  layers: [3, 3]
  text: |
    two
    lines
  empty:
resources:
  slots_per_trial: 1
`;

function field(text: string, name: string) {
  return findFields(text).flatMap(({ fields }) => fields).find((one) => one.name === name)!;
}

function change(text: string, name: string, value: string): string {
  return changeField(text, field(text, name).place!, value);
}

test("both sections have their values by path, with what the form cannot change", () => {
  const [hyperparameters, search] = findFields(TEXT);
  expect(hyperparameters!.fields.map(({ name, value, place }) => [name, value, place !== null])).toEqual([
    ["lr", "1e-3", true], ["optimizer.name", "it's", true],
    ["width.type", "int", true], ["width.minval", "8", true], ["width.maxval", "64", true],
    ["layers", "a list", false], ["text", "a text of several lines", false], ["empty", "", true],
  ]);
  expect(field(TEXT, "layers").reason).toBe("a list: edit line 12 of the YAML");
  expect(search!.fields.map(({ name, value }) => `${name}=${value}`)).toEqual(["name=random", "max_length.batches=100", "metric=val loss"]);
});

test("a change keeps the rest of the text, comments included", () => {
  expect(change(TEXT, "lr", "0.01")).toBe(TEXT.replace("1e-3", "0.01"));
  expect(change(TEXT, "width.maxval", "128")).toBe(TEXT.replace("maxval: 64", "maxval: 128"));
  expect(change(TEXT, "max_length.batches", "5")).toBe(TEXT.replace("batches: 100", "batches: 5"));
  expect(change(TEXT, "empty", "true")).toBe(TEXT.replace("empty:", "empty: true"));
});

test("a number stays a number while it is written", () => {
  let text = TEXT;
  for (const value of ["1e-", "1", "", "2", "2e", "2e-4"]) text = change(text, "lr", value);
  expect(text).toBe(TEXT.replace("1e-3", "2e-4"));
  expect(change(TEXT, "lr", "")).toBe(TEXT.replace("lr: 1e-3 ", "lr:  "));
});

test("texts are quoted where YAML reads something else", () => {
  expect(change(TEXT, "metric", "a: b")).toBe(TEXT.replace('"val loss"', '"a: b"'));
  expect(change(TEXT, "metric", "loss")).toBe(TEXT.replace('"val loss"', "loss"));
  expect(change(TEXT, "width.type", "a, b}")).toBe(TEXT.replace("type: int", 'type: "a, b}"'));
  // A text of digits in quotes stays a text.
  expect(change('hyperparameters: {x: "5"}\n', "x", "56")).toBe('hyperparameters: {x: "56"}\n');
});

test.each([
  ["searcher: random\n", "Search", "The form cannot change a single value on line 1. Edit the YAML."],
  ["hyperparameters: {a: [1, 2}\n", "Hyperparameters", "The form cannot change a map in braces that the form does not read on line 1. Edit the YAML."],
  ["hyperparameters: &h\n  a: 1\n", "Hyperparameters", "The form cannot change an anchor on line 1. Edit the YAML."],
  ["hyperparameters: {}\n", "Hyperparameters", "The configuration sets none."],
  ["name: x\n", "Search", "The configuration sets none."],
  ['{"searcher": {"name": "single"}}', "Search", "The form cannot read the text: line 1 is no `key: value`. Edit the YAML."],
  ["a: 1\na: 2\n", "Search", "The form cannot read the text: line 2 sets a in a way that the form does not read. Edit the YAML."],
  ["a:\n\tb: 1\n", "Search", "The form cannot read the text: line 2 is indented with a tab. Edit the YAML."],
  ["a:\n    b: 1\n  c: 2\n", "Search", "The form cannot read the text: line 3 is indented more than the lines around it. Edit the YAML."],
  ["  a: 1\nb: 2\n", "Search", "The form cannot read the text: line 2 is indented less than line 1. Edit the YAML."],
])("%j has no fields, with a reason", (text, title, reason) => {
  const section = findFields(text).find((one) => one.title === title)!;
  expect([section.fields, section.reason]).toEqual([[], reason]);
});

test("lists at the indent of their key, comments and blank lines are passed over", () => {
  const text = "labels:\n- a\n- b: 1\n\n# nothing\nhyperparameters:\n  x: a#b\n  url: http://a:80/b # c\n";
  expect(findFields(text)[0]!.fields.map(({ value }) => value)).toEqual(["a#b", "http://a:80/b"]);
});
