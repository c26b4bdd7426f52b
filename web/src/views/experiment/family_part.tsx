/** The family of an experiment: its originals, the forks of its original and its own forks, as a tree. */

import type { ExperimentWhole } from "../../api/answers";
import { get, type Schemas } from "../../api/client";
import { markOf } from "../../live/owner";
import { useLive } from "../../live/use_live";
import { countText, numberText } from "../../parts/format";
import { Badge } from "../../parts/status";
import { Table, type Column } from "../../parts/table";
import { href } from "../../shell/router";
import { changesText, depthsOf, type Member } from "./family_tree";

/** Show nothing without a family, and while the cluster does not answer. */
export function FamilyPart({ experiment }: { experiment: ExperimentWhole }) {
  const id = experiment.id!;
  const { value: family } = useLive(
    `family of experiment ${id}`,
    (signal) => get("/api/v1/experiments/{experiment_id}/family", { path: { experiment_id: id }, signal }),
    () => "still",
    markOf(experiment),
  );
  if (!family || (family.members.length < 2 && !experiment.forked_from)) return null;
  return (
    <details open>
      <summary>{summaryOf(experiment, family)}</summary>
      <Table label="family" rows={family.members} rowKey={(member) => member.id} columns={columnsOf(id, depthsOf(family.members))} />
      {family.is_cut && (
        <p class="quiet">
          The family has more members. <a href={`${href("experiments")}?filter=${encodeURIComponent(`forked-from:${id}`)}`}>All forks of experiment {id}</a>
        </p>
      )}
    </details>
  );
}

function summaryOf({ id, forked_from: original }: ExperimentWhole, { members }: Schemas["Family"]): string {
  const forks = members.filter(({ forked_from: other }) => other === id).length;
  const parts = [...(original ? [`forked from experiment ${original}`] : []), ...(forks ? [countText(forks, "fork")] : [])];
  return `Family: ${parts.join(", ")}`;
}

function columnsOf(id: number, depths: Map<number, number>): Column<Member>[] {
  return [
    { key: "id", title: "Experiment", show: (member) => {
      const depth = depths.get(member.id) ?? 0;
      const lead = depth ? `${"\u2003".repeat(depth - 1)}└ ` : "";
      return <>{lead}{member.id === id ? <strong aria-current="true">{member.id}</strong> : <a href={href("experiments", member.id)}>{member.id}</a>}</>;
    } },
    { key: "name", title: "Name", show: ({ name }) => name },
    { key: "state", title: "State", show: ({ condition }) => <Badge state={condition} /> },
    { key: "metric", title: "Metric", show: ({ metric }) => metric },
    { key: "best", title: "Best", isNumber: true, show: ({ best_metric: best }) => numberText(best) },
    { key: "changes", title: "Changes", show: (member) => <span title={changesText(member)}>{changesText(member)}</span> },
  ];
}
