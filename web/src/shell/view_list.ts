/** The views that the bar, the palette and the shortcuts lead to. */

interface View {
  title: string;
  /** Its name in the bar, which has little room. */
  short?: string;
  path: string[];
  key: string;
}

export const VIEWS: View[] = [
  { title: "Experiments", path: ["experiments"], key: "e" },
  { title: "Projects", path: ["projects"], key: "r" },
  { title: "Commands and notebooks", short: "Commands", path: ["commands"], key: "c" },
  { title: "Job queue", path: ["jobs"], key: "j" },
  { title: "Pools and agents", short: "Pools", path: ["pools"], key: "p" },
  { title: "Models", path: ["models"], key: "m" },
  { title: "New experiment", path: ["create"], key: "n" },
  { title: "Templates", path: ["templates"], key: "t" },
  { title: "Tokens", path: ["tokens"], key: "k" },
];
