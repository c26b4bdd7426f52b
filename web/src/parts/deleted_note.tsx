/** The notes about logs and metrics that were deleted after their retention. */

import { Moment } from "./status";

interface Owner {
  logs_deleted_ms?: number | null;
  metrics_deleted_ms?: number | null;
}

/** When the data of an experiment or trial was deleted; nothing without a deletion. `name` names the owner among others. */
export function DeletedNote({ of: { logs_deleted_ms: logs, metrics_deleted_ms: metrics }, name = "" }: { of: Owner; name?: string }) {
  const whose = name && ` of ${name}`;
  return (
    <>
      {logs && <p class="wait" role="note">Logs{whose} were deleted on <Moment ms={logs} />, after their retention had ended.</p>}
      {metrics && (
        <p class="wait" role="note">
          Detailed metrics{whose} were deleted on <Moment ms={metrics} />: validations and the extreme and last values of other metrics remain.
        </p>
      )}
    </>
  );
}
