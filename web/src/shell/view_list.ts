/** The views that the header, the palette and the shortcuts lead to. */

export interface View {
  title: string;
  /** The name in the header's second row, where that names the section already. */
  short?: string;
  path: string[];
  /** The key that goes to the view after `g`. */
  key: string;
}

/** A link of the header's first row. The header's second row has the views of a section with several. */
export interface Section {
  title: string;
  views: [View, ...View[]];
  /** First parts of addresses that belong to the section and to none of its views. */
  also?: string[];
}

const HOME: View = { title: "Home", path: ["home"], key: "h" };
const EXPERIMENTS: View = { title: "Experiments", short: "All experiments", path: ["experiments"], key: "e" };
const PROJECTS: View = { title: "Projects", path: ["projects"], key: "r" };
const TEMPLATES: View = { title: "Templates", path: ["templates"], key: "t" };
const SCHEDULES: View = { title: "Schedules", path: ["schedules"], key: "s" };
const REPORTS: View = { title: "Reports", path: ["reports"], key: "o" };
const COMMANDS: View = { title: "Commands and notebooks", path: ["commands"], key: "c" };
const MODELS: View = { title: "Models", path: ["models"], key: "m" };
const JOBS: View = { title: "Job queue", path: ["jobs"], key: "j" };
const POOLS: View = { title: "Pools and agents", path: ["pools"], key: "p" };
const ALARMS: View = { title: "Alarms", path: ["alarms"], key: "a" };
const USAGE: View = { title: "Usage", path: ["usage"], key: "u" };
const WEBHOOKS: View = { title: "Webhooks", path: ["webhooks"], key: "w" };

export const CREATE: View = { title: "New experiment", path: ["create"], key: "n" };
export const TOKENS: View = { title: "Tokens", path: ["tokens"], key: "k" };

export const SECTIONS: Section[] = [
  { title: "Home", views: [HOME] },
  { title: "Experiments", views: [EXPERIMENTS, PROJECTS, SCHEDULES, REPORTS, TEMPLATES], also: ["trials", "compare", "create"] },
  { title: "Commands", views: [COMMANDS] },
  { title: "Models", views: [MODELS] },
  { title: "Cluster", views: [JOBS, POOLS, USAGE, ALARMS, WEBHOOKS] },
];

export const VIEWS: View[] = [...SECTIONS.flatMap(({ views }) => views), CREATE, TOKENS];

/** The section of an address whose first part is `first`; undefined for the user's own views. */
export function sectionOf(first: string): Section | undefined {
  return SECTIONS.find(({ views, also }) => views.some(({ path }) => path[0] === first) || also?.includes(first));
}
