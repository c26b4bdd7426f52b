/** Labels, notes and metadata of a model or of one of its versions. */

import { Labels } from "../../parts/labels";

interface Props {
  of: { labels: string[]; notes: string; metadata: object };
}

export function Remarks({ of: { labels, notes, metadata } }: Props) {
  return (
    <>
      <Labels labels={labels} of="models" />
      {notes && <p class="notes">{notes}</p>}
      {Object.keys(metadata).length > 0 && (
        <details open>
          <summary>Metadata</summary>
          <pre tabIndex={0}>{JSON.stringify(metadata, null, 2)}</pre>
        </details>
      )}
    </>
  );
}
