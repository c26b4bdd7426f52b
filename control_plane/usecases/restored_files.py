"""The start of a notebook or shell with the files of an earlier notebook or shell."""

from typing import Final, NamedTuple

from control_plane.access.principals import Principal, Role
from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.records import CheckpointRef, JobKind
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.snapshots import KEPT_KINDS
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries import experiment as experiments
from control_plane.services import Services
from control_plane.usecases.warm_start import check_store

FIELD: Final = "restored_from"


class RestoredFiles(NamedTuple):
    """The files of another notebook or shell with which a run starts."""

    snapshot: CheckpointRef
    """The snapshot of the folder."""
    code_sha256: str
    """The digest of the other run's uploaded files, which may contain a startup hook."""


def find_restored_files(
    services: Services,
    source_id: int | None,
    kind: JobKind,
    config: ExperimentConfig,
    caller: Principal,
) -> RestoredFiles | None:
    """Return the files of the notebook or shell with which a submitted run starts. Pin nothing.

    A run without a snapshot of its own has the snapshot with which it started itself.

    Args:
        services: the services that read the state.
        source_id: the id of the other notebook or shell. None returns None.
        kind: the kind of the submitted job.
        config: the configuration of the submitted job, for the checkpoint store.
        caller: the user.

    Raises:
        RequestError: invalid, if either job is no notebook or shell, or the source does not exist,
            has no usable snapshot, or stores its snapshot in another store. forbidden, unless the
            caller is the owner of the source or an admin.
    """
    if source_id is None:
        return None
    if kind not in KEPT_KINDS:
        raise invalid(FIELD, f"is for notebooks and shells, and this is a {kind}")
    found = services.experiments.read_experiment(source_id)
    if found is None:
        text = f"is {source_id}, and there is no such notebook or shell here"
        raise invalid(FIELD, text, "`detcloud notebook list` and `detcloud shell list` show them")
    state, definition = found
    if state.kind not in KEPT_KINDS:
        raise invalid(FIELD, f"is {state.title}; only notebooks and shells keep their files")
    if caller.role is not Role.ADMIN and caller.user != state.owner:
        text = f"{state.title} belongs to {state.owner}"
        raise RequestError(
            Code.FORBIDDEN, f"{text}: only {state.owner} and admins may start with its files"
        )
    snapshot = _find_snapshot(services, state, definition)
    check_store(services, config, snapshot, FIELD)
    return RestoredFiles(snapshot, definition.code_sha256)


def _find_snapshot(
    services: Services, state: ExperimentState, definition: Definition
) -> CheckpointRef:
    """Return the newest snapshot of a notebook or shell, or the snapshot from the start of the run.

    Raises:
        RequestError: invalid, with the reason, if neither can be used.
    """
    trial_id = next(experiments.trial_ids(services, state, 0, 1), None)
    trial = None if trial_id is None else services.experiments.read_trial(trial_id)
    newest = None if trial is None else trial.snapshot
    reference = definition.warm_start if newest is None else newest.checkpoint
    if reference is None:
        is_off = definition.settings.snapshots is None
        why = "they are switched off in its configuration" if is_off else "no files were saved yet"
        raise invalid(FIELD, f"{state.title} has no snapshot: {why}")
    record = services.engine.read_part(
        addresses.trial(reference.trial_id), CHECKPOINT_PARTS + reference.uuid
    )
    if not isinstance(record, CheckpointRecord) or not record.state.has_files:
        raise invalid(FIELD, f"the snapshot of {state.title} was deleted")
    if record.state is not CheckpointState.COMPLETED:
        why = record.damage or "some of its files were deleted"
        raise invalid(FIELD, f"the snapshot of {state.title} cannot be used: {why}")
    return record.checkpoint
