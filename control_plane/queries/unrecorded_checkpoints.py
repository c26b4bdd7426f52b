"""Query of checkpoint folders in an experiment's store that the state table does not record."""

from control_plane.checkpoint_gc.stores import CollectionFailed, stores_of
from control_plane.checkpoint_gc.unrecorded_checkpoints import UnrecordedCheckpoint, find_unrecorded
from control_plane.errors import Code, RequestError
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.services import Services

# The most trials that a request lists folders of. Each trial is a call to the store.
_TRIALS_READ_MAX = 20
_LIST = "unrecorded-checkpoints"


class UnrecordedCheckpointAnswer(Answer):
    """A checkpoint folder in an experiment's store that is not recorded.

    The folder may belong to an upload that is still running. Deleting the experiment also deletes
    the folder if `is_complete` and `is_own` (written by this cluster) are true.
    """

    uuid: str
    trial_id: int
    experiment_id: int
    epoch: int
    is_complete: bool
    is_own: bool


def list_unrecorded(
    services: Services, experiment_id: int, page: PageRequest
) -> Page[UnrecordedCheckpointAnswer]:
    """Return a page of the experiment's unrecorded checkpoints, sorted by trial.

    A page covers all unrecorded checkpoints of up to 20 trials; the page's limit is ignored. A page
    with a cursor may be empty. Each trial's folders are listed in the store. Nothing is deleted.

    Raises:
        RequestError: not_found, if the experiment does not exist; conflict, if the store cannot be
            opened or read; invalid, for a cursor of another list.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    after = page.start_after(_LIST, (int,))
    first = 0 if after is None else max(int(after[0]), 0)
    end = min(state.trials, first + _TRIALS_READ_MAX)
    stores = stores_of(services)
    try:
        items = [
            _answer(checkpoint)
            for trial_id in experiments.trial_ids(services, state, first, end)
            for checkpoint in find_unrecorded(stores, experiment_id, trial_id)
        ]
    except CollectionFailed as failed:
        raise RequestError(Code.CONFLICT, str(failed)) from None
    more = end < state.trials
    return Page(items=items, next_cursor=encode_cursor(_LIST, (end,)) if more else None)


def _answer(checkpoint: UnrecordedCheckpoint) -> UnrecordedCheckpointAnswer:
    """Return the answer for an unrecorded checkpoint."""
    return UnrecordedCheckpointAnswer(
        uuid=checkpoint.uuid,
        trial_id=checkpoint.trial_id,
        experiment_id=checkpoint.experiment_id,
        epoch=checkpoint.epoch,
        is_complete=checkpoint.is_complete,
        is_own=checkpoint.is_own,
    )
