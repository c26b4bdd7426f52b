/** Where the API is. A copy of the page on another server names it in its entry. */

/** The address of the API without a slash at its end; "" where it serves the page itself. */
export function apiUrl(): string {
  const mark = document.querySelector<HTMLMetaElement>('meta[name="detcloud-api"]');
  return (mark?.content ?? "").replace(/\/+$/, "");
}

/** Whether the page is served by another server than the API. */
export function isElsewhere(): boolean {
  return apiUrl() !== "";
}
