"""Rows in the partitions of trials outside the actor: reports, logs, metrics and uploads.

The rows are deleted together with the trial.
"""

from control_plane.rows.row_type import RowType

ENVIRONMENT = RowType(
    name="environment",
    key="trial#TRIAL / E#EPOCH#WRITER",
    meaning="The software and hardware that a process of an allocation reported.",
    body="JSON of the reported line",
    writers=("agents.sessions",),
    readers=("queries.trial", "queries.charts"),
)
TRIAL_METADATA = RowType(
    name="trial metadata",
    key="trial#TRIAL / U#",
    meaning="The metadata that the trial's code reported last.",
    body="JSON of the metadata",
    writers=("agents.sessions",),
    readers=("agents.sessions", "usecases.metadata_edits"),
)
TRIAL_EDIT = RowType(
    name="edit of trial metadata",
    key="trial#TRIAL / V#",
    meaning="The metadata that users set or removed, on top of the code's metadata.",
    record="control_plane.actors.metadata_edits:MetadataEdit",
    writers=("usecases.metadata_edits",),
    readers=("agents.sessions", "usecases.metadata_edits"),
    is_mutable=True,
)
CHECKPOINT_EDIT = RowType(
    name="edit of checkpoint metadata",
    key="trial#TRIAL / V#CHECKPOINT",
    meaning="The metadata of a checkpoint that users set or removed.",
    record="control_plane.actors.metadata_edits:MetadataEdit",
    writers=("usecases.metadata_edits",),
    readers=("queries.checkpoint", "usecases.metadata_edits"),
    is_mutable=True,
)
ANNOUNCEMENT = RowType(
    name="checkpoint announcement",
    key="trial#TRIAL / I#EPOCH#WRITER#OFFSET",
    meaning="The start of an upload, by which the collector finds the files of unfinished uploads.",
    fields={
        "uuid": "the UUID of the checkpoint",
        "begun_ms": "the start of a user's upload, in epoch ms; missing for a trial's upload",
    },
    writers=("agents.sessions", "usecases.checkpoint_uploads"),
    readers=("checkpoint_gc.removal",),
)
LOG_CHUNK = RowType(
    name="log chunk",
    key="trial#TRIAL / L#EPOCH#OFFSET",
    meaning="The index of a chunk of an allocation's log, with the text of a small chunk.",
    fields={
        "end": "the offset after the chunk",
        "marks": "offsets with the times at which the bytes from there on were first seen",
        "node": "the rank of the node; missing for an allocation on one node",
        "text": "the bytes as Latin-1; missing if the chunk is in the object store",
    },
    writers=("agents.logs",),
    readers=("agents.logs",),
    secret_fields=("text",),
)
METRICS = RowType(
    name="metrics",
    key="trial#TRIAL / R#GROUP#EPOCH#WRITER#OFFSET",
    meaning="Consecutive metric reports of one group by one writer.",
    body="columns (metrics/segment.py); a full row has the digest of an object",
    writers=("agents.metric_rows",),
    readers=(
        "agents.metric_rows",
        "monitoring.gpu_use",
    ),
)
RANK_METRICS = RowType(
    name="metrics of a rank",
    key="trial#TRIAL / W#RANK#GROUP#EPOCH#WRITER#OFFSET",
    meaning="Consecutive metric reports by a process other than the chief.",
    body="columns (metrics/segment.py); a full row has the digest of an object",
    writers=("agents.metric_rows",),
    readers=("agents.metric_rows",),
)
UPLOAD_SESSION = RowType(
    name="upload session",
    key="trial#TRIAL / S#CHECKPOINT#FILE",
    meaning="The store's name of an upload in parts. FILE is a digest of the file's path.",
    fields={"session": "the store's name of the upload"},
    writers=("checkpoint_gc.upload_sessions",),
    readers=("checkpoint_gc.upload_sessions",),
    secret_fields=("session",),
)
TRIAL_REPLACEMENT = RowType(
    name="replacement of a trial",
    key="trial#TRIAL / B#EPOCH",
    meaning="The replacement that ended in a run of the trial, as in the rows of the pool.",
    record="control_plane.actors.replacement:ReplacementRecord",
    writers=("actors.trial.replacement_tracking",),
    readers=("queries.replacements",),
)

ROW_TYPES = (
    ENVIRONMENT,
    TRIAL_METADATA,
    TRIAL_EDIT,
    CHECKPOINT_EDIT,
    ANNOUNCEMENT,
    LOG_CHUNK,
    METRICS,
    RANK_METRICS,
    UPLOAD_SESSION,
    TRIAL_REPLACEMENT,
)
