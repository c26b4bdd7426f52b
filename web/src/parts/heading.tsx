/** The heading of a view, which is also the title of the browser's tab. */

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { shortText } from "./format";

const HEADING_MAX = 160;
const TITLE_MAX = 80;

export function Heading({ title, children }: { title: string; children?: ComponentChildren }) {
  useEffect(() => {
    document.title = `${shortText(title, TITLE_MAX)} – detcloud`;
  }, [title]);
  return <h1>{shortText(title, HEADING_MAX)} {children}</h1>;
}
