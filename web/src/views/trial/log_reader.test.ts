import { expect, test } from "vitest";
import { LogReader, type Line } from "./log_reader";

type Page = { items: Line[]; next_cursor: string | null; complete: boolean };

function line(offset: number): Line {
  return { offset, time_ms: null, rank: 0, level: null, text: `line ${offset}` };
}

/** A log whose pages are given in turn; asked behind which cursor, in `asked`. */
function reader(pages: Page[]): { read: () => ReturnType<LogReader["readOn"]>; asked: (string | undefined)[] } {
  const asked: (string | undefined)[] = [];
  const log = new LogReader((after) => {
    asked.push(after);
    return Promise.resolve(pages[asked.length - 1]!);
  });
  return { read: () => log.readOn(new AbortController().signal), asked };
}

test("pages are read to the end, and later from where they ended", async () => {
  const { read, asked } = reader([
    { items: [line(0)], next_cursor: "a", complete: false },
    { items: [], next_cursor: "a", complete: false },
    { items: [line(7)], next_cursor: null, complete: true },
  ]);
  expect(await read()).toMatchObject({ lines: [line(0)], isOpen: true });
  expect(asked).toEqual([undefined, "a"]);
  expect(await read()).toMatchObject({ lines: [line(0), line(7)], isOpen: false });
  expect(asked).toEqual([undefined, "a", "a"]);
  await read();
  expect(asked).toHaveLength(3);
});

test("an empty page in the middle is no end", async () => {
  const { read } = reader([
    { items: [], next_cursor: "a", complete: false },
    { items: [line(3)], next_cursor: null, complete: true },
  ]);
  expect((await read()).lines).toEqual([line(3)]);
});
