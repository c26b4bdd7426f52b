import { expect, test } from "vitest";
import { LogReader, shownText, type Line } from "./log_reader";

type Page = { items: Line[]; next_cursor: string | null; complete: boolean };

function line(offset: number): Line {
  return { offset, time_ms: null, rank: 0, level: null, text: `line ${offset}`, unfinished: false };
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

test("a progress bar that moves stays one line", async () => {
  const bar = { ...line(6), text: "\r 10%", unfinished: true };
  const { read } = reader([
    { items: [line(0), bar], next_cursor: "a", complete: false },
    { items: [], next_cursor: "a", complete: false },
    // The unfinished text has five bytes.
    { items: [{ ...line(11), text: "\r 20%\r 30%" }, line(30)], next_cursor: null, complete: true },
  ]);
  expect((await read()).lines.map(({ text }) => text)).toEqual(["line 0", "\r 10%"]);
  const { lines } = await read();
  expect(lines.map(({ text }) => shownText(text))).toEqual(["line 0", " 30%", "line 30"]);
});

test("a line that does not go on with an unfinished one is another line", async () => {
  const bar = { ...line(6), text: "\r 10%", unfinished: true };
  const { read } = reader([{ items: [bar, line(50)], next_cursor: null, complete: true }]);
  expect((await read()).lines).toHaveLength(2);
});

test("a text without carriage returns is shown as it is", () => {
  expect(["a b", "a\r", "\r", "a\rbc"].map(shownText)).toEqual(["a b", "a", "", "bc"]);
});
