import { expect, test } from "vitest";
import { LINES_MAX, LogWindow, LOG_END, type LoadPage, type Place } from "./log_window";

const signal = new AbortController().signal;
// Each line of the log has ten bytes.
const WIDTH = 10;

interface Log {
  count: number;
  ended: boolean;
  /** Whether a line matches the filters. */
  matches: (n: number) => boolean;
  /** Lines that a page searches. */
  searched: number;
}

function logOf(count: number, changes: Partial<Log> = {}): { log: Log; load: LoadPage; asked: Place[] } {
  const log: Log = { count, ended: true, matches: () => true, searched: 100_000, ...changes };
  const asked: Place[] = [];
  const load: LoadPage = async (place) => {
    asked.push(place);
    const line = (n: number) => ({ offset: n * WIDTH, time_ms: null, rank: 0, level: null, text: `line ${n}`, unfinished: false });
    if (place.before !== undefined) {
      const end = Math.min(log.count, Math.floor(place.before / WIDTH));
      const first = Math.max(0, end - log.searched);
      const all = Array.from({ length: end - first }, (_, n) => first + n).filter(log.matches);
      const kept = all.slice(-place.limit);
      const start = all.length > kept.length ? kept[0]! : first;
      return { items: kept.map(line), next_cursor: String(end * WIDTH), complete: log.ended && end === log.count, previous: start * WIDTH || null, size: log.count * WIDTH };
    }
    const first = Math.ceil(Number(place.after ?? place.at ?? 0) / WIDTH);
    const end = Math.min(log.count, first + log.searched);
    const all = Array.from({ length: Math.max(0, end - first) }, (_, n) => first + n).filter(log.matches);
    const kept = all.slice(0, place.limit);
    const next = all.length > kept.length ? kept.at(-1)! + 1 : end;
    const complete = log.ended && next >= log.count;
    return { items: kept.map(line), next_cursor: complete ? null : String(next * WIDTH), complete, previous: first * WIDTH || null, size: log.count * WIDTH };
  };
  return { log, load, asked };
}

test("a log begins with its last lines and is read backwards", async () => {
  const { load, asked } = logOf(2_000);
  const source = new LogWindow(load, null);
  let state = await source.read(signal);
  expect(asked).toEqual([{ before: LOG_END, limit: 500 }]);
  expect([state.lines[0]!.text, state.lines.at(-1)!.text]).toEqual(["line 1500", "line 1999"]);
  expect(state).toMatchObject({ hasEarlier: true, hasLater: false, isOpen: false, size: 20_000 });
  source.want("earlier");
  state = await source.read(signal);
  expect([state.lines[0]!.text, state.lines.length]).toEqual(["line 1000", 1_000]);
});

test("new lines of a growing log follow", async () => {
  const { log, load } = logOf(3, { ended: false });
  const source = new LogWindow(load, null);
  expect(await source.read(signal)).toMatchObject({ isOpen: true, hasLater: false });
  log.count = 5;
  expect((await source.read(signal)).lines.map(({ text }) => text).slice(-2)).toEqual(["line 3", "line 4"]);
  log.ended = true;
  expect(await source.read(signal)).toMatchObject({ isOpen: false, hasLater: false });
});

test("a linked line is shown with the lines around", async () => {
  const { load } = logOf(5_000);
  const state = await new LogWindow(load, 2_000 * WIDTH).read(signal);
  expect([state.lines[0]!.text, state.lines.at(-1)!.text]).toEqual(["line 1500", "line 2499"]);
  expect(state).toMatchObject({ hasEarlier: true, hasLater: true });
});

test("a search looks through the whole log, over several reads", async () => {
  const { load } = logOf(100_000, { matches: (n) => n === 7, searched: 1_000 });
  const source = new LogWindow(load, null);
  let state = await source.read(signal);
  // 100 pages of 1,000 lines; a read has 20 pages and one.
  expect(state).toMatchObject({ isSearching: true, lines: [], notice: "21 % of the log searched" });
  let reads = 1;
  for (; state.isSearching; reads += 1) state = await source.read(signal);
  expect(state.lines.map(({ text }) => text)).toEqual(["line 7"]);
  expect(reads).toBe(5);
});

test("a log of a million lines is held in part, without a gap", async () => {
  const { load } = logOf(1_000_000, { ended: false, searched: 1_000 });
  const source = new LogWindow(load, null);
  let state = await source.read(signal);
  for (let n = 0; n < 20; n += 1) {
    source.want("earlier");
    state = await source.read(signal);
    expect(state.lines.length).toBeLessThanOrEqual(LINES_MAX);
  }
  expect(state.hasLater).toBe(true);
  expect(state.lines[0]!.offset).toBe((1_000_000 - 21 * 500) * WIDTH);
  for (let n = 0; n < 60 && state.hasLater; n += 1) {
    source.want("later");
    state = await source.read(signal);
    const offsets = state.lines.map(({ offset }) => offset);
    expect(offsets).toEqual(Array.from({ length: offsets.length }, (_, place) => offsets[0]! + place * WIDTH));
  }
  expect(state.lines.at(-1)!.text).toBe("line 999999");
});

test("lines that arrive while the reader is elsewhere do not replace the reader's lines", async () => {
  const { log, load } = logOf(500, { ended: false });
  const source = new LogWindow(load, null);
  await source.read(signal);
  source.follows = false;
  log.count = 100_000;
  let state = await source.read(signal);
  for (let n = 0; n < 30; n += 1) state = await source.read(signal);
  expect(state.lines[0]!.text).toBe("line 0");
  expect(state.hasLater).toBe(true);
});

test("the view goes to another place", async () => {
  const { load } = logOf(5_000);
  const source = new LogWindow(load, null);
  await source.read(signal);
  source.openAt(0);
  expect((await source.read(signal)).lines[0]!.text).toBe("line 0");
  source.openAt(null);
  expect((await source.read(signal)).lines.at(-1)!.text).toBe("line 4999");
});
