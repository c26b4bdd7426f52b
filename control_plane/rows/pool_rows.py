"""The rows of pools and jobs."""

from control_plane.rows.row_type import RowType

POOL = RowType(
    name="pool",
    key="pools / POOL",
    meaning="A pool that exists.",
    body="empty",
    writers=("actors.pool.actor",),
    readers=("queries.pool", "actors.experiment.job", "provisioner.engine_pools"),
)
POOL_CONFIG = RowType(
    name="pool configuration",
    key="pool-configs / POOL",
    meaning="The section of a pool in the cluster's configuration.",
    record="control_plane.config.pools:ResourcePool",
    writers=("usecases.pool_settings",),
    readers=("queries.cluster_configuration",),
)
JOB = RowType(
    name="job",
    key="jobs#POOL / EXPERIMENT",
    meaning="The settings of an experiment for the scheduler of the pool.",
    record="control_plane.actors.job_row:JobRow",
    writers=("actors.experiment.job",),
    readers=(
        "actors.pool.job_queue",
        "agents.audit",
        "queries.job",
        "queries.pool",
        "usecases.job_changes",
        "usecases.likely_image",
        "monitoring.cluster_metrics",
    ),
    wakes=("tick",),
    is_passing=True,
)
JOB_ID = RowType(
    name="job id",
    key="job-ids / JOB",
    meaning="The experiment of a queued job, by the UUID of the job.",
    body="the decimal id of the experiment",
    writers=("actors.experiment.job",),
    readers=("queries.job_lookup",),
)
JOB_MOVES = RowType(
    name="moves of jobs",
    key="job-moves / POOL",
    meaning="A row that each move of a job in the pool writes, so that moves are serialized.",
    body="empty; only the revision counts",
    writers=("usecases.job_changes",),
    readers=("usecases.job_changes",),
)
USAGE = RowType(
    name="usage",
    key="usage#POOL / ENDED.TRIAL.EPOCH",
    meaning="The cost of an ended allocation.",
    record="control_plane.actors.cost:Usage",
    body="JSON list of the fields in order",
    writers=("actors.trial.metering",),
    readers=("queries.cost", "fleet.usage_days"),
)
REPLACEMENT = RowType(
    name="replacement",
    key="replacements#POOL / ENDED.TRIAL.EPOCH",
    meaning="The way of a trial from the loss of its slots to the first step of a later run.",
    record="control_plane.actors.replacement:ReplacementRecord",
    writers=("actors.trial.replacement_tracking",),
    readers=("queries.replacements",),
    expiry="90 days after the end",
)

ROW_TYPES = (POOL, POOL_CONFIG, JOB, JOB_ID, JOB_MOVES, USAGE, REPLACEMENT)
