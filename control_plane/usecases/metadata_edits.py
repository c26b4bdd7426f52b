"""Changes of the metadata of trials and checkpoints by users."""

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
from control_plane.usecases.checkpoint_uploads import deletion_checks
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.row_changes import change_row


def set_trial_metadata(
    services: Services,
    trial_id: int,
    metadata: Mapping[str, object],
    revision: str | None,
    extra_writes: ExtraWrites,
) -> int:
    """Set the metadata of a trial, also of one that runs, and return its id.

    Raises:
        RequestError: not_found; conflict, if it is of another revision than expected or its
            experiment is being deleted.
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
    """Set the metadata of the checkpoint with this UUID, and return that. Its files stay as they
    are.

    Raises:
        RequestError: as in `set_trial_metadata`.
    """
    record, experiment_id = get_checkpoint(services, uuid)
    key = Key(addresses.trial(record.checkpoint.trial_id), f"{METADATA_EDITS}{uuid}")
    what = f"the metadata of checkpoint {uuid}"
    change = _Change(what, experiment_id, lambda: record.metadata, uuid)
    _write_edit(services, key, change, metadata, revision, extra_writes)
    return uuid


class _Change(NamedTuple):
    """The trial or checkpoint of a change: its name in errors, its experiment, what its code set,
    and the reply.
    """

    what: str
    experiment_id: int
    read_own: Callable[[], Mapping[str, object]]
    reply: object


def _write_edit(
    services: Services,
    key: Key,
    subject: _Change,
    metadata: Mapping[str, object],
    revision: str | None,
    extra_writes: ExtraWrites,
) -> None:
    def change(row: Row | None) -> tuple[None, tuple[Write, ...]]:
        checks = deletion_checks(services, subject.experiment_id)
        own, before = subject.read_own(), decode_edit(row.body if row else None)
        present = content_revision(before.merge_edit(own))
        if problem := find_changed_since(subject.what, present, revision):
            raise RequestError(Code.CONFLICT, problem)
        body = encode_edit(edit_between(metadata, own, before))
        former = row.revision if row else 0
        put = Put(key, former + 1, body, former or Expect.ABSENT)
        return None, (put, *checks, *extra_writes(subject.reply))

    also = (addresses.experiment(subject.experiment_id),)
    change_row(services.table, key, change, subject.what, also=also)
