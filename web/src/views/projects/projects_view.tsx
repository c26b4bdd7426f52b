/** Workspaces and projects, with how many experiments are in each. */

import { get, type Schemas } from "../../api/client";
import { useLive } from "../../live/use_live";
import { Heading } from "../../parts/heading";
import { Empty, Shown } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";

type Project = Schemas["Project"];

/** The address of the list of a workspace's experiments, or a project's. */
export function experimentsLink(workspace: string, project?: string): string {
  const query = new URLSearchParams({ workspace, ...(project !== undefined && { project }) });
  return `${href("experiments")}?${query}`;
}

export function ProjectsView() {
  const live = useLive("projects", (signal) => get("/api/v1/projects", { signal }), () => "resting");
  return (
    <>
      <Heading title="Projects" />
      <Shown live={live}>
        {({ items, left_out_before: before }) => items.length === 0 ? <Empty>No projects yet.</Empty> : (
          <>
            <Table label="projects" rows={items} rowKey={({ workspace, project }) => `${workspace}/${project}`} columns={COLUMNS} />
            {before !== null && before !== undefined && <p class="quiet">Experiments older than {before} are not counted.</p>}
            <p class="quiet">Projects appear when an experiment uses them. Move experiments in the list of experiments.</p>
          </>
        )}
      </Shown>
    </>
  );
}

const COLUMNS: Column<Project>[] = [
  {
    key: "workspace",
    title: "Workspace",
    show: ({ workspace }) => <a href={experimentsLink(workspace)}>{workspace}</a>,
    value: ({ workspace }) => workspace,
  },
  {
    key: "project",
    title: "Project",
    show: ({ workspace, project }) => <a href={experimentsLink(workspace, project)}>{project}</a>,
    value: ({ project }) => project,
  },
  { key: "experiments", title: "Experiments", isNumber: true, show: (one) => one.experiments, value: (one) => one.experiments },
  { key: "open", title: "Not ended", isNumber: true, show: ({ open }) => open, value: ({ open }) => open },
  { key: "archived", title: "Archived", isNumber: true, show: ({ archived }) => archived, value: ({ archived }) => archived },
];
