/** What people say of something, each part of it edited where it stands: labels, notes, metadata. */

import { InPlace } from "./in_place";
import { Labels, splitLabels } from "./labels";
import { Metadata, metadataText, parseMetadata } from "./metadata";

/** A change of one or several of the fields; what is not named stays. */
export interface RemarkChanges {
  labels?: string[];
  notes?: string;
  metadata?: Record<string, unknown>;
}

interface Props {
  /** Names what it is said of, in the whole page. */
  name: string;
  labels: string[];
  labelsOf?: "experiments" | "models";
  notes: string;
  metadata: object;
  mayEdit?: boolean;
  save: (changes: RemarkChanges) => Promise<unknown>;
  reload: () => Promise<void>;
}

export function Remarks({ name, labels, labelsOf = "experiments", notes, metadata, mayEdit = true, save, reload }: Props) {
  const common = { of: name, mayEdit, reload };
  return (
    <section aria-label="notes and labels">
      <InPlace {...common} name="labels" value={labels.join("\n")} rows={4} hint="One label per line."
        save={(text) => save({ labels: splitLabels(text) })}>
        <Labels labels={labels} of={labelsOf} />
      </InPlace>
      <InPlace {...common} name="notes" value={notes} rows={6} save={(text) => save({ notes: text })}>
        {notes && <p class="notes">{notes}</p>}
      </InPlace>
      <MetadataInPlace {...common} metadata={metadata} save={(changed) => save({ metadata: changed })} />
    </section>
  );
}

interface MetadataProps {
  of: string;
  metadata: object;
  mayEdit?: boolean;
  save: (metadata: Record<string, unknown>) => Promise<unknown>;
  reload: () => Promise<void>;
}

export function MetadataInPlace({ of, metadata, mayEdit = true, save, reload }: MetadataProps) {
  const value = Object.keys(metadata).length ? metadataText(metadata) : "";
  return (
    <InPlace of={of} name="metadata" mayEdit={mayEdit} reload={reload} value={value} rows={8} isCode hint="A JSON object."
      save={async (text) => save(parseMetadata(text))}>
      <Metadata of={metadata} />
    </InPlace>
  );
}
