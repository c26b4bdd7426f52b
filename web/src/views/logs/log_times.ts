/** Moments of a log's filter: the reader's own time in the fields, UTC in addresses that are passed on. */

/** The text that an address has for the time of a field, such as `2026-11-27T08:30`; "" for none. */
export function toAddressTime(local: string): string {
  const ms = new Date(local).getTime();
  return Number.isFinite(ms) ? new Date(ms).toISOString().replace(".000Z", "Z") : "";
}

/** What a field of a local time shows for an address's text. */
export function toFieldTime(text: string | null): string {
  const ms = toMs(text);
  if (ms === null) return "";
  const time = new Date(ms);
  const shifted = new Date(ms - time.getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 19);
}

/** The moment that an address names, null for none. */
export function toMs(text: string | null): number | null {
  const ms = text ? new Date(text).getTime() : NaN;
  return Number.isFinite(ms) ? ms : null;
}
