import { expect, test } from "vitest";
import { curvesCsv, fileName, rowsCsv } from "./save_chart";

test("a row for each step, with nothing where a curve has no value", () => {
  const csv = curvesCsv("steps", ["trial 1", "trial 2"], [[1, 2], [0.5, null], [undefined, -3]]);
  expect(csv).toBe("steps,trial 1,trial 2\r\n1,0.5,\r\n2,,-3\r\n");
});

test("what others named is a text in a spreadsheet, too", () => {
  expect(curvesCsv("steps", ['=1+1', 'a,"b"'], [[], [], []])).toBe("steps,'=1+1,\"a,\"\"b\"\"\"\r\n");
});

test("a file's name has letters, digits and dashes", () => {
  expect(fileName("../loss: trials <of> 7", "csv")).toBe("loss-trials-of-7.csv");
  expect(fileName("///", "png")).toBe("chart.png");
});

test("rows of any values become fields", () => {
  expect(rowsCsv(["trial", "note"], [[1, "a,b"], [null, { x: 1 }]])).toBe('trial,note\r\n1,"a,b"\r\n,"{""x"":1}"\r\n');
});
