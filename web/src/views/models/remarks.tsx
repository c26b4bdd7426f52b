/** Labels, notes and metadata of a model or of one of its versions. */

import { Labels } from "../../parts/labels";
import { Metadata } from "../../parts/metadata";

interface Props {
  of: { labels: string[]; notes: string; metadata: object };
}

export function Remarks({ of: { labels, notes, metadata } }: Props) {
  return (
    <>
      <Labels labels={labels} of="models" />
      {notes && <p class="notes">{notes}</p>}
      <Metadata of={metadata} />
    </>
  );
}
