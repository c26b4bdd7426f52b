/** Parts of a view, of which the address says which is shown. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { href, useRoute } from "../shell/router";

interface Props {
  base: (string | number)[];
  tabs: readonly (readonly [name: string, title: string])[];
}

/** The name of the part that is shown: the first without one. */
export function useTab(tabs: Props["tabs"]): string {
  const chosen = useRoute().parts[2];
  return tabs.find(([name]) => name === chosen)?.[0] ?? tabs[0]![0];
}

export function Tabs({ base, tabs }: Props) {
  const current = useTab(tabs);
  const nav = useCurrentInSight(current);
  return (
    <nav ref={nav} class="tabs" aria-label="parts of this view">
      {tabs.map(([name, title]) => (
        <a key={name} href={href(...base, name)} aria-current={name === current ? "page" : undefined}>
          {title}
        </a>
      ))}
    </nav>
  );
}

/** A row of links that keeps the current one in sight where it is longer than the window is wide. */
export function useCurrentInSight(current: string) {
  const row = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const link = row.current?.querySelector<HTMLElement>("[aria-current]");
    if (link) row.current!.scrollLeft = link.offsetLeft - row.current!.offsetLeft - 16;
  }, [current]);
  return row;
}
