/** When the user has last seen the failures of the start page, in this browser. */

const KEY = "detcloud.seen-failures";
// Failures of the time before somebody first opens the page.
const FIRST_LOOK_MS = 7 * 24 * 3_600_000;

/** The epoch ms up to which failures are seen. */
export function lastLookMs(nowMs: number): number {
  const kept = Number(localStorage.getItem(KEY));
  return kept > 0 ? kept : nowMs - FIRST_LOOK_MS;
}

export function keepLook(nowMs: number): void {
  localStorage.setItem(KEY, String(nowMs));
}
