/** Dark or light: as the machine has it, or as chosen here. */

const KEY = "detcloud.theme";
const THEMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export function chosenTheme(): Theme {
  return THEMES.find((theme) => theme === localStorage.getItem(KEY)) ?? "auto";
}

export function applyTheme(theme: Theme): void {
  localStorage.setItem(KEY, theme);
  document.documentElement.dataset.theme = theme;
}

export function followingTheme(theme: Theme): Theme {
  return THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!;
}
