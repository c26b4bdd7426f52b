/** Dark or light: as the machine has it, or as chosen here. */

import { useEffect, useState } from "preact/hooks";

const KEY = "detcloud.theme";
const listeners = new Set<() => void>();
const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export function chosenTheme(): Theme {
  return THEMES.find((theme) => theme === localStorage.getItem(KEY)) ?? "auto";
}

export function applyTheme(theme: Theme): void {
  localStorage.setItem(KEY, theme);
  document.documentElement.dataset.theme = theme;
  listeners.forEach((listener) => listener());
}

/** A number that changes when the colours do, here or of the machine: what is drawn is drawn again. */
export function useThemeChanges(): number {
  const [changes, setChanges] = useState(0);
  useEffect(() => {
    const onChange = () => setChanges((count) => count + 1);
    const machine = matchMedia("(prefers-color-scheme: dark)");
    listeners.add(onChange);
    machine.addEventListener("change", onChange);
    return () => {
      listeners.delete(onChange);
      machine.removeEventListener("change", onChange);
    };
  }, []);
  return changes;
}

export function followingTheme(theme: Theme): Theme {
  return THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!;
}
