/** Parts of a view, of which the address says which is shown. */

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
  return (
    <nav class="tabs" aria-label="parts of this view">
      {tabs.map(([name, title]) => (
        <a key={name} href={href(...base, name)} aria-current={name === current ? "page" : undefined}>
          {title}
        </a>
      ))}
    </nav>
  );
}
