"""Lists of checkpoints that are in an experiment's store and not recorded."""

from control_plane.checkpoint_gc.stores import CollectionFailed, stores_of
from control_plane.checkpoint_gc.unrecorded_checkpoints import UnrecordedCheckpoint, find_unrecorded
from control_plane.errors import Code, RequestError
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest, encode_cursor
from control_plane.services import Services

# Trials whose folders one request lists: each is a call to the store.
_TRIALS_READ_MAX = 20
_LIST = "unrecorded-checkpoints"


class UnrecordedCheckpointAnswer(Answer):
    """A folder among an experiment's checkpoints that is not recorded, which may be an upload under
    way. Deleting the experiment deletes those that are complete and this cluster's own.
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
    """List unrecorded checkpoints by trial. A page covers a few trials, whatever its limit.

    Raises RequestError not_found, or conflict if the store cannot be read.
    """
    state, _ = experiments.get_experiment(services, experiment_id)
    after = page.start_after(_LIST, (int,))
    first = 0 if after is None else max(int(after[0]), 0)
    end = min(state.trials, first + _TRIALS_READ_MAX)
    stores = stores_of(services)
    try:
        items = [
            _answer(one)
            for trial_id in experiments.trial_ids(services, state, first, end)
            for one in find_unrecorded(stores, experiment_id, trial_id)
        ]
    except CollectionFailed as failed:
        raise RequestError(Code.CONFLICT, str(failed)) from None
    more = end < state.trials
    return Page(items=items, next_cursor=encode_cursor(_LIST, (end,)) if more else None)


def _answer(one: UnrecordedCheckpoint) -> UnrecordedCheckpointAnswer:
    return UnrecordedCheckpointAnswer(
        uuid=one.uuid,
        trial_id=one.trial_id,
        experiment_id=one.experiment_id,
        epoch=one.epoch,
        is_complete=one.is_complete,
        is_own=one.is_own,
    )
