"""The checkpoint that an experiment's trials start from, as its configuration names it."""

from control_plane.actors.records import CheckpointRef
from control_plane.actors.trial_checkpoints import CheckpointRecord, CheckpointState
from control_plane.agents.spec import Checkpoints, place_of, storage_of, stored_config
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.services import Services
from control_plane.api.views import checkpoint as checkpoints
from control_plane.api.views import experiment as experiments
from control_plane.api.views import trial as trials
from control_plane.collection.survey import records_of
from control_plane.config import ExperimentConfig

_TRIAL, _CHECKPOINT = "searcher.source_trial_id", "searcher.source_checkpoint_uuid"


def warm_start_of(services: Services, config: ExperimentConfig) -> CheckpointRef | None:
    """The latest checkpoint of the source trial or else the source checkpoint, None for neither.

    Raises:
        ApiError: invalid, naming the field; there is no such checkpoint, or it lies in another
            store than this experiment's.
    """
    searcher = config.searcher
    if searcher.source_trial_id is not None:
        field, record = _TRIAL, _latest(services, searcher.source_trial_id)
    elif searcher.source_checkpoint_uuid is not None:
        field, record = _CHECKPOINT, _named(services, searcher.source_checkpoint_uuid)
    else:
        return None
    _check_store(services, config, record, field)
    return record.checkpoint


def _latest(services: Services, trial_id: int) -> CheckpointRecord:
    try:
        trials.found(services, trial_id)
    except ApiError as error:
        raise invalid(_TRIAL, error.message) from None
    records = records_of(services.table, trial_id)
    complete = [record for record in records if record.state is CheckpointState.COMPLETED]
    if not complete:
        raise invalid(_TRIAL, f"trial {trial_id} has no complete checkpoint to start from")
    return max(complete, key=lambda it: (it.checkpoint.steps_completed, it.created_ms))


def _named(services: Services, prefix: str) -> CheckpointRecord:
    try:
        record, _ = checkpoints.found(services, prefix)
    except ApiError as error:
        text = error.details[0].message if error.details else error.message
        raise invalid(_CHECKPOINT, text) from None
    if record.state is not CheckpointState.COMPLETED:
        raise invalid(_CHECKPOINT, f"checkpoint {record.checkpoint.uuid} was deleted")
    return record


def _check_store(
    services: Services, config: ExperimentConfig, record: CheckpointRecord, field: str
) -> None:
    """Trials read it from the store they write to: it must lie there."""
    trial = trials.found(services, record.checkpoint.trial_id)
    _, definition = experiments.found(services, trial.experiment_id)
    theirs = _store(stored_config(definition), services.checkpoints)
    ours = _store(config, services.checkpoints)
    if theirs != ours:
        text = (
            f"checkpoint {record.checkpoint.uuid} lies in the store {theirs}, but this"
            f" experiment's is {ours}"
        )
        raise invalid(field, text, "give both the same checkpoint_storage")


def _store(config: ExperimentConfig, checkpoints: Checkpoints) -> str:
    found = storage_of(config.checkpoint_storage, checkpoints)
    if found is None:
        kind = config.checkpoint_storage.type
        raise ApiError(Code.INVALID, f"a {kind} store is not available on this cluster yet")
    return place_of(found)
