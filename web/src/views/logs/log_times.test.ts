import { afterEach, expect, test, vi } from "vitest";
import { toAddressTime, toFieldTime, toMs } from "./log_times";

afterEach(() => vi.unstubAllEnvs());

test("a time in an address is the same moment in every time zone", () => {
  vi.stubEnv("TZ", "Asia/Kolkata");
  // India is 5 h 30 min ahead of UTC.
  const text = toAddressTime("2026-11-27T08:30");
  expect(text).toBe("2026-11-27T03:00:00Z");
  expect(toFieldTime(text)).toBe("2026-11-27T08:30:00");
  vi.stubEnv("TZ", "America/New_York");
  // And New York, in November, 5 h behind it.
  expect(toFieldTime(text)).toBe("2026-11-26T22:00:00");
  expect(toMs(text)).toBe(Date.UTC(2026, 10, 27, 3));
});

test.each([null, "", "soon"])("%s is no moment", (text) => {
  expect(toMs(text)).toBeNull();
  expect(toFieldTime(text)).toBe("");
  expect(toAddressTime(text ?? "")).toBe("");
});
