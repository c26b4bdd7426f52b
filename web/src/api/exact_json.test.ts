import { expect, test } from "vitest";

import { toYaml } from "../views/create/yaml";
import { parseMetadata } from "../parts/metadata";
import { exactText, parseAnswer, parseExactly } from "./exact_json";

const LARGE = "9007199254740993";

test("free-form parts of answers keep large integers", () => {
  const text = `{"id": 3, "hparams": {"n": ${LARGE}, "m": [-${LARGE}], "x": 0.41702200470257412}, "metric": ${LARGE}}`;
  const answer = parseAnswer(text) as { hparams: Record<string, unknown>; metric: number };
  expect(answer.hparams).toEqual({ n: BigInt(LARGE), m: [-BigInt(LARGE)], x: 0.41702200470257412 });
  // Charts compute with the others.
  expect(answer.metric).toBe(9007199254740992);
});

test("large integers are written as they were read", () => {
  const hparams = parseExactly(`{"count": ${LARGE}}`);
  expect(exactText({ hparams, text: "1", none: undefined })).toBe(`{"hparams":{"count":${LARGE}},"text":"1"}`);
  expect(toYaml({ hyperparameters: hparams })).toBe(`hyperparameters:\n  count: ${LARGE}\n`);
  expect(exactText(parseMetadata(`{"run": ${LARGE}}`))).toBe(`{"run":${LARGE}}`);
});

test("other numbers and texts are those of JSON", () => {
  const text = `{"hparams": {"a": 9007199254740991, "b": 1e300, "c": "${LARGE}", "d": 1.0, "e": [${LARGE}.5]}}`;
  expect(parseAnswer(text)).toEqual(JSON.parse(text));
});
