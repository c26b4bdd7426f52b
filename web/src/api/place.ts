/** Where the API is. A copy of the page on another server names it in its entry. */

/**
 * The address of the API without a slash at its end. A path where the API serves the page itself:
 * "", or the prefix of its paths at a proxy that serves other applications as well.
 */
export function apiUrl(): string {
  return namedUrl() || (/^(.*)\/ui\/[^/]*$/.exec(location.pathname)?.[1] ?? "");
}

/** Whether the page is served by another server than the API. */
export function isElsewhere(): boolean {
  return namedUrl() !== "";
}

/** The address that the entry of a copy of the page names; "" in the API's own page. */
function namedUrl(): string {
  const mark = document.querySelector<HTMLMetaElement>('meta[name="detcloud-api"]');
  return (mark?.content ?? "").replace(/\/+$/, "");
}
