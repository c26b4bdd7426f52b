"""The query of an experiment's replacements: the time in which trials do not train after a loss."""

from control_plane.actors import addresses
from control_plane.queries.answer import Answer
from control_plane.queries.experiment import get_experiment
from control_plane.queries.replacements import CauseSum, ReplacementView, sum_latest
from control_plane.rows.experiment_rows import EXPERIMENT_REPLACEMENT
from control_plane.services import Services


class ExperimentReplacements(Answer):
    """The sums of an experiment's replacements that ended since `since_ms`, by cause.

    `since_ms` is the time of the submission. `is_cut` is whether there were more: only the latest
    SUMMED_MAX replacements are summed, and `since_ms` is the end of the earliest of them. `latest`
    are the latest replacements, the newest first.
    """

    experiment_id: int
    since_ms: int
    is_cut: bool
    causes: list[CauseSum]
    latest: list[ReplacementView]


def experiment_replacements(services: Services, experiment_id: int) -> ExperimentReplacements:
    """Return the sums of the replacements that ended in the experiment's trials.

    The experiment has a row for each replacement. At most the latest SUMMED_MAX rows are read, so
    that the number of trials does not count.

    Raises:
        RequestError: not_found, if the experiment does not exist or was deleted.
        TableError: the state table failed.
    """
    state, _ = get_experiment(services, experiment_id)
    sums = sum_latest(
        services,
        addresses.experiment(experiment_id),
        EXPERIMENT_REPLACEMENT.sort,
        EXPERIMENT_REPLACEMENT.sort_end,
        state.created_ms,
    )
    return ExperimentReplacements(experiment_id=experiment_id, **sums)
