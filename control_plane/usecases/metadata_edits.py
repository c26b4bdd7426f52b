"""Users' changes of the metadata of trials and checkpoints."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from control_plane.actors import addresses
from control_plane.actors.content_revision import content_revision, find_changed_since
from control_plane.actors.metadata_edits import (
    METADATA_EDITS,
    decode_edit,
    edit_between,
    encode_edit,
)
from control_plane.agents.sessions import TRIAL_METADATA
from control_plane.engine.actor_types import parse_json
from control_plane.errors import Code, RequestError
from control_plane.queries.checkpoint import get_checkpoint
from control_plane.queries.trial import get_trial
from control_plane.services import Services
from control_plane.state.table import Expect, Key, Put, Row, Write
from control_plane.usecases.experiment_deletion import deletion_checks
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.row_changes import change_row


def set_trial_metadata(
    services: Services,
    trial_id: int,
    metadata: Mapping[str, object],
    revision: str | None,
    extra_writes: ExtraWrites,
) -> int:
    """Set the metadata of a trial, even while the trial runs; return the trial's id.

    A row of the trial stores the differences to the metadata that the trial's code set. Later
    metadata from the code stay visible in the fields that the user did not change.

    Args:
        services: the services with the state table.
        trial_id: the trial.
        metadata: the complete new metadata.
        revision: the revision of the metadata that the user read; None skips the check.
        extra_writes: returns further writes of the commit, given the id.

    Raises:
        RequestError: not_found, if the trial does not exist; conflict, if the metadata have another
            revision or the experiment is being deleted; unavailable, if other requests keep
            changing the metadata.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    experiment_id = get_trial(services, trial_id).experiment_id
    partition = addresses.trial(trial_id)

    def read_own() -> Mapping[str, object]:
        row = services.table.get(Key(partition, TRIAL_METADATA))
        return {} if row is None else parse_json(row.body)

    change = _Change(f"the metadata of trial {trial_id}", experiment_id, read_own, trial_id)
    _write_edit(services, Key(partition, METADATA_EDITS), change, metadata, revision, extra_writes)
    return trial_id


def set_checkpoint_metadata(
    services: Services,
    uuid: str,
    metadata: Mapping[str, object],
    revision: str | None,
    extra_writes: ExtraWrites,
) -> str:
    """Set the metadata of a checkpoint in the state table; return the UUID.

    A row of the trial stores the differences to the recorded metadata. The checkpoint's files and
    manifest do not change.

    Args:
        services: the services with the state table.
        uuid: the full UUID.
        metadata: the complete new metadata.
        revision: the revision of the metadata that the user read; None skips the check.
        extra_writes: returns further writes of the commit, given the UUID.

    Raises:
        RequestError: not_found, if the checkpoint does not exist; invalid, if `uuid` is not a UUID;
            conflict, if the metadata have another revision or the experiment is being deleted;
            unavailable, if other requests keep changing the metadata.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    record, experiment_id = get_checkpoint(services, uuid)
    key = Key(addresses.trial(record.checkpoint.trial_id), f"{METADATA_EDITS}{uuid}")
    name = f"the metadata of checkpoint {uuid}"
    change = _Change(name, experiment_id, lambda: record.metadata, uuid)
    _write_edit(services, key, change, metadata, revision, extra_writes)
    return uuid


class _Change(NamedTuple):
    """The metadata that a user changes."""

    name: str
    """The name of the metadata in error messages."""
    experiment_id: int
    """The experiment of the trial or checkpoint."""
    read_own: Callable[[], Mapping[str, object]]
    """Reads the metadata that the trial's code set."""
    reply: object
    """The reply of the change: the trial's id or the checkpoint's UUID."""


def _write_edit(
    services: Services,
    key: Key,
    subject: _Change,
    metadata: Mapping[str, object],
    revision: str | None,
    extra_writes: ExtraWrites,
) -> None:
    """Replace the user's edit in the row `key`, so that users read `metadata` from then on.

    The edit is the difference between `metadata` and the metadata that the trial's code set. An
    edit without differences is stored as well. After a concurrent change of the row or the
    experiment, try again.

    Args:
        services: the services with the state table.
        key: the row of the edit.
        subject: the trial or checkpoint with the metadata.
        metadata: the complete new metadata.
        revision: the revision of the metadata that the user read; None skips the check.
        extra_writes: returns further writes of the commit, given the reply of `subject`.

    Raises:
        RequestError: conflict, if the metadata have another revision or the experiment is being
            deleted; not_found, if the experiment does not exist; unavailable, if other requests
            keep changing the metadata.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[None, tuple[Write, ...]]:
        checks = deletion_checks(services, subject.experiment_id)
        own, before = subject.read_own(), decode_edit(row.body if row else None)
        present = content_revision(before.merge_edit(own))
        if problem := find_changed_since(subject.name, present, revision):
            raise RequestError(Code.CONFLICT, problem)
        body = encode_edit(edit_between(metadata, own, before), row.body if row else None)
        former = row.revision if row else 0
        put = Put(key, former + 1, body, former or Expect.ABSENT)
        return None, (put, *checks, *extra_writes(subject.reply))

    also = (addresses.experiment(subject.experiment_id),)
    change_row(services.table, key, change, subject.name, also=also)
