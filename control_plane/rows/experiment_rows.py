"""Rows of experiments outside the actors: lists, requests, checkpoints and counters."""

from control_plane.rows.row_type import RowType

METHOD_CALL = RowType(
    name="last call of a search method",
    key="experiment#EXPERIMENT / H#method",
    meaning="The time of the last call of a custom search's method, at most every 30 s.",
    body="a decimal number of epoch ms",
    writers=("usecases.search_method_calls",),
    readers=("queries.search_method",),
)
LISTING = RowType(
    name="listing",
    key="experiments / EXPERIMENT",
    meaning="The values by which lists of experiments are filtered and sorted.",
    record="control_plane.actors.experiment.listing:ListingRow",
    body="JSON; rows of the first releases are two lines, the state and the user",
    writers=("actors.experiment.listing", "actors.experiment.deletion"),
    readers=(
        "queries.experiment_list",
        "queries.projects",
        "restoration.restart",
        "monitoring.cluster_metrics",
    ),
)
VALUES = RowType(
    name="values",
    key="experiment-values / EXPERIMENT",
    meaning="The hyperparameters and metrics that lists of experiments show and sort by.",
    record="control_plane.actors.experiment.values:ExperimentValues",
    writers=("actors.experiment.values", "actors.experiment.deletion"),
    readers=("queries.listed_facts",),
)
METADATA_TERM = RowType(
    name="metadata term",
    key="experiments-by-metadata#HASH / EXPERIMENT",
    meaning="An experiment with a term of metadata. HASH is the SHA-256 of the term.",
    body="empty",
    writers=("actors.experiment.metadata_rows",),
    readers=("queries.experiment_list",),
)
FORK = RowType(
    name="fork",
    key="experiment-forks#ORIGINAL / EXPERIMENT",
    meaning="An experiment that was forked from another experiment, the original.",
    body="empty",
    writers=("actors.experiment.submission", "actors.experiment.deletion"),
    readers=("queries.family", "queries.experiment_list"),
)
COLLECTION = RowType(
    name="collection request",
    key="collections / EXPERIMENT",
    meaning="A request to delete checkpoints of an experiment, or the whole experiment.",
    fields={
        "generation": "the number of the request",
        "retention": "the checkpoints to keep: best of the experiment, best and latest of a trial",
        "delete": "whether the experiment is deleted",
        "expiry": "the latest end of a retention, the days of logs and metrics, and whether to "
        "delete expired data at once; missing without expired data",
    },
    writers=("actors.experiment.collection", "actors.experiment.deletion"),
    readers=("checkpoint_gc.collector",),
)
REMOVAL = RowType(
    name="file removal",
    key="collections / files/EXPERIMENT/CHECKPOINT",
    meaning="A request to remove the files of a marked checkpoint.",
    body="the decimal id of the trial",
    writers=("actors.trial.checkpoints",),
    readers=("checkpoint_gc.collector", "checkpoint_gc.removal"),
)
RETENTION_END = RowType(
    name="end of a retention",
    key="retention-ends / EXPERIMENT",
    meaning="The time at which an ended experiment requests the deletion of logs or metrics.",
    body="the time in epoch ms, as a decimal number",
    writers=("actors.experiment.expiry",),
    readers=("engine.row_expiry",),
    expiry="at the time, when the experiment gets a message",
)
SUGGESTION = RowType(
    name="awaited suggestion",
    key="suggestions / EXPERIMENT",
    meaning="A Bayesian search that waits for its model.",
    fields={"first": "the number of the first suggestion that the search waits for"},
    writers=("actors.experiment.suggestions",),
    readers=("suggestions.suggester", "lambdas.tick_steps", "local_cluster.suggestion_thread"),
    wakes=("tick",),
    is_passing=True,
)
CHECKPOINT = RowType(
    name="checkpoint owner",
    key="checkpoints / CHECKPOINT",
    meaning="The trial that a checkpoint belongs to.",
    body="the decimal id of the trial",
    writers=("actors.trial.checkpoints", "checkpoint_gc.erasure"),
    readers=("queries.checkpoint", "usecases.experiment_deletion"),
)
PIN = RowType(
    name="pin",
    key="pins / CHECKPOINT",
    meaning="Everything that keeps a checkpoint from deletion.",
    record="control_plane.actors.pins:Pin",
    writers=(
        "actors.pins",
        "actors.trial.checkpoints",
        "usecases.checkpoint_pins",
        "usecases.models",
        "usecases.model_versions",
        "checkpoint_gc.pins",
    ),
    readers=("checkpoint_gc.pins", "usecases.experiment_deletion", "usecases.models"),
    expiry="1 h after the checkpoint was deleted",
    is_mutable=True,
)
EXPERIMENT_REPLACEMENT = RowType(
    name="replacement of an experiment",
    key="experiment#EXPERIMENT / B#ENDED.TRIAL.EPOCH",
    meaning="A replacement that ended in a trial of the experiment, as in the rows of the pool.",
    record="control_plane.actors.replacement:ReplacementRecord",
    writers=("actors.trial.replacement_tracking",),
    readers=("queries.experiment_replacements",),
)
COUNTER = RowType(
    name="counter",
    key="counters / NAME",
    meaning="The next id of experiments, trials, tokens, reports or webhooks.",
    body="a decimal number",
    writers=(
        "actors.identifiers",
        "usecases.submission",
        "usecases.user_tokens",
        "usecases.reports",
        "usecases.webhooks",
        "restoration.restart",
    ),
    readers=(
        "actors.identifiers",
        "usecases.submission",
        "usecases.user_tokens",
        "usecases.reports",
        "usecases.webhooks",
        "monitoring.cluster_metrics",
    ),
)

ROW_TYPES = (
    METHOD_CALL,
    LISTING,
    VALUES,
    METADATA_TERM,
    FORK,
    COLLECTION,
    REMOVAL,
    RETENTION_END,
    SUGGESTION,
    CHECKPOINT,
    PIN,
    EXPERIMENT_REPLACEMENT,
    COUNTER,
)
