"""Warm start: find the checkpoint that an experiment's configuration names as the start."""

from control_plane.actors.records import CheckpointRef
from control_plane.actors.trial.checkpoints import CheckpointRecord, CheckpointState
from control_plane.agents.spec import parse_stored_config
from control_plane.checkpoint_gc.checkpoint_inventory import checkpoint_records
from control_plane.checkpoint_stores.trial_storage import display_storage, storage_fields
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.storage import CheckpointStorage
from control_plane.errors import RequestError, invalid
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import experiment as experiments
from control_plane.queries import trial as trials
from control_plane.services import Services

_TRIAL, _CHECKPOINT = "searcher.source_trial_id", "searcher.source_checkpoint_uuid"


def find_warm_start(services: Services, config: ExperimentConfig) -> CheckpointRef | None:
    """Return the checkpoint that the experiment's trials start from. Pin nothing.

    Returns:
        The checkpoint of `source_trial_id` with the most steps, if configured; otherwise the
        checkpoint `source_checkpoint_uuid`, a prefix of a UUID. None if neither is configured.

    Raises:
        RequestError: invalid, naming the field, if the checkpoint does not exist or the prefix is
            ambiguous. invalid also if the checkpoint is damaged, deleted, or in another store than
            the experiment's. not_found, if the checkpoint's experiment was deleted.
    """
    searcher = config.searcher
    if searcher.source_trial_id is not None:
        field, record = _TRIAL, _latest_checkpoint(services, searcher.source_trial_id)
    elif searcher.source_checkpoint_uuid is not None:
        field, record = (
            _CHECKPOINT,
            _checkpoint_by_prefix(services, searcher.source_checkpoint_uuid),
        )
    else:
        return None
    check_store(services, config, record.checkpoint, field)
    return record.checkpoint


def _latest_checkpoint(services: Services, trial_id: int) -> CheckpointRecord:
    """Return the trial's complete checkpoint with the most steps; of several, the newest.

    Checkpoints that users uploaded and snapshots of folders do not count.

    Raises:
        RequestError: invalid, if the trial or a complete checkpoint does not exist.
    """
    try:
        trials.get_trial(services, trial_id)
    except RequestError as error:
        raise invalid(_TRIAL, error.message) from None
    records = checkpoint_records(services.table, trial_id)
    complete = [
        record
        for record in records
        if record.state is CheckpointState.COMPLETED
        and not (record.uploaded_by or record.is_snapshot)
    ]
    if not complete:
        raise invalid(_TRIAL, f"trial {trial_id} has no complete checkpoint to start from")
    return max(complete, key=lambda record: (record.checkpoint.steps_completed, record.created_ms))


def _checkpoint_by_prefix(services: Services, prefix: str) -> CheckpointRecord:
    """Return the complete checkpoint with this prefix of the UUID.

    Raises:
        RequestError: invalid, if no or several checkpoints have the prefix, or the checkpoint is
            damaged or deleted, also in part. invalid also for a snapshot of a folder, which only
            its owner may read.
    """
    try:
        record, _ = checkpoints.get_checkpoint(services, prefix)
    except RequestError as error:
        text = error.details[0].message if error.details else error.message
        raise invalid(_CHECKPOINT, text) from None
    if record.is_snapshot:
        text = f"checkpoint {record.checkpoint.uuid} has the files of a notebook or shell"
        raise invalid(_CHECKPOINT, text, "start another one with `--from`")
    if record.state is CheckpointState.DAMAGED:
        text = f"checkpoint {record.checkpoint.uuid} is damaged: {record.damage}"
        raise invalid(_CHECKPOINT, text, "choose another checkpoint of its trial")
    if record.state is not CheckpointState.COMPLETED:
        text = f"checkpoint {record.checkpoint.uuid} was {record.state.deletion_text}"
        raise invalid(_CHECKPOINT, text)
    return record


def check_store(
    services: Services, config: ExperimentConfig, checkpoint: CheckpointRef, field: str
) -> None:
    """Check that the checkpoint is in the experiment's own store, the only store that trials read.

    Raises:
        RequestError: invalid, naming the configuration's `field`, if the stores differ; not_found,
            if the checkpoint's trial or experiment was deleted.
    """
    trial = trials.get_trial(services, checkpoint.trial_id)
    _, definition = experiments.get_experiment(services, trial.experiment_id)
    source_store = _store_name(parse_stored_config(definition), services.checkpoints)
    own_store = _store_name(config, services.checkpoints)
    if source_store != own_store:
        text = (
            f"checkpoint {checkpoint.uuid} is in the store {source_store}, but "
            f"this experiment's store is {own_store}"
        )
        raise invalid(field, text, "use the same checkpoint_storage for both")


def _store_name(config: ExperimentConfig, checkpoints: CheckpointStorage) -> str:
    """Return a name for users of the configuration's checkpoint store, without secrets.

    Without a store in the configuration, return the name of `checkpoints`, the cluster's own store.
    Configurations with the same store have equal names.
    """
    return display_storage(storage_fields(config.checkpoint_storage, checkpoints))
