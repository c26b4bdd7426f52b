/** An experiment's name, notes, labels and metadata, edited where they stand. */

import type { ExperimentWhole } from "../../api/answers";
import { send } from "../../api/client";
import { Heading } from "../../parts/heading";
import { InPlace } from "../../parts/in_place";
import { Remarks } from "../../parts/remarks";
import { Badge } from "../../parts/status";
import { mayChange, useWho } from "../../shell/who";

interface Props {
  experiment: ExperimentWhole;
  onDone: () => Promise<void>;
}

type Said = Pick<ExperimentWhole, "name" | "description" | "labels" | "metadata">;

async function change({ experiment, onDone }: Props, body: Partial<Said>): Promise<void> {
  await send("patch", "/api/v1/experiments/{experiment_id}", { path: { experiment_id: experiment.id! }, body: { ...body, revision: experiment.revision } });
  await onDone();
}

export function Name(props: Props) {
  const { id, name, condition, user } = props.experiment;
  const mayEdit = mayChange(useWho(), user);
  return (
    <InPlace of={`experiment ${id}`} name="name" value={name} mayEdit={mayEdit} isRequired reload={props.onDone} save={(text) => change(props, { name: text })}>
      <Heading title={name || `Experiment ${id}`}><Badge state={condition} /></Heading>
    </InPlace>
  );
}

export function Notes(props: Props) {
  const { id, description, labels, metadata, user } = props.experiment;
  const mayEdit = mayChange(useWho(), user);
  return (
    <Remarks name={`experiment ${id}`} labels={labels} notes={description} metadata={metadata} mayEdit={mayEdit} reload={props.onDone}
      save={({ notes, ...others }) => change(props, { ...others, ...(notes !== undefined && { description: notes }) })} />
  );
}
