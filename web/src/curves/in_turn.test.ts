import { expect, test } from "vitest";
import { doInTurn } from "./in_turn";

const pass = () => new Promise((resolve) => setTimeout(resolve));

test("pieces are done in order, each in a task of its own, but what was taken back", async () => {
  const done: number[] = [];
  doInTurn(() => done.push(1));
  const takeBack = doInTurn(() => done.push(2));
  doInTurn(() => done.push(3));
  takeBack();
  expect(done).toEqual([]);
  await pass();
  expect(done).toEqual([1]);
  await pass();
  expect(done).toEqual([1, 3]);
});
