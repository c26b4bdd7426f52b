"""Previews of collections and deletions of checkpoints: what would go, and how long it takes."""

import math
from collections.abc import Generator, Sequence
from typing import TypeVar

from control_plane.actors import addresses
from control_plane.actors.records import Retention
from control_plane.actors.trial.checkpoints import CHECKPOINT_PARTS, CheckpointRecord
from control_plane.actors.trial.state import TrialState
from control_plane.checkpoint_gc.collection_request import list_unwanted
from control_plane.checkpoint_gc.pins import read_pins
from control_plane.checkpoint_gc.ranking import CheckpointCandidate
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.checkpoint_files import checkpoint_folder, choose_files
from control_plane.queries.cluster_configuration import deletion_limit
from control_plane.services import Services

SHOWN_MAX = 500

T = TypeVar("T")


class CollectionPreview(Answer):
    """The effect that a collection would have now; `delete` holds the first of `delete_count`.
    `delete_files` counts manifests as well, and `delete_seconds` is how long so many take at the
    cluster's limit, others' collections left aside.
    """

    delete: list[checkpoints.Checkpoint]
    delete_count: int
    delete_files: int
    delete_bytes: int
    delete_seconds: int
    keep_count: int
    keep_bytes: int


def preview_collection(
    services: Services,
    experiment_id: int,
    save_experiment_best: int | None,
    save_trial_best: int | None,
    save_trial_latest: int | None,
    *,
    delete_experiment: bool = False,
) -> CollectionPreview:
    """Preview a collection with these numbers; None: as configured. With `delete_experiment` it is
    that of its deletion, whatever the numbers. RequestError not_found.
    """
    state, definition = experiments.get_experiment(services, experiment_id)
    now = experiments.current_settings(services, state, definition).retention
    retention = Retention(
        now.save_experiment_best if save_experiment_best is None else save_experiment_best,
        now.save_trial_best if save_trial_best is None else save_trial_best,
        now.save_trial_latest if save_trial_latest is None else save_trial_latest,
    )
    if delete_experiment:
        retention = Retention(0, 0, 0)
    work = list_unwanted(services.engine, state, retention, delete_experiment=delete_experiment)
    inventory, unwanted = _finish(work)
    candidates = list(inventory.candidates())
    delete_bytes = sum(one.size_bytes for one in unwanted)
    delete_files = sum(_stored_files(one.files) for one in unwanted)
    return CollectionPreview(
        delete=_describe_candidates(services, experiment_id, unwanted[:SHOWN_MAX]),
        delete_count=len(unwanted),
        delete_files=delete_files,
        delete_bytes=delete_bytes,
        delete_seconds=_seconds_at_limit(services, delete_files),
        keep_count=len(candidates) - len(unwanted),
        keep_bytes=sum(one.size_bytes for one in candidates) - delete_bytes,
    )


class DeletionPreview(Answer):
    """The effect that the deletion of a checkpoint would have, the numbers as in a
    `CollectionPreview`; `problem` says why it would be refused, "" if it would not.
    """

    uuid: str
    delete_files: int
    delete_bytes: int
    delete_seconds: int
    problem: str


def preview_deletion(services: Services, prefix: str) -> DeletionPreview:
    """Preview the deletion of the checkpoint whose UUID begins with `prefix`; RequestError
    not_found or invalid.
    """
    record, _ = checkpoints.get_checkpoint(services, prefix)
    is_there = record.state.has_files
    files = _stored_files(record.files) if is_there else 0
    return DeletionPreview(
        uuid=record.checkpoint.uuid,
        delete_files=files,
        delete_bytes=record.size_bytes if is_there else 0,
        delete_seconds=_seconds_at_limit(services, files),
        problem=find_need(services, record) if is_there else "",
    )


def preview_partial_deletion(
    services: Services, prefix: str, patterns: Sequence[str]
) -> DeletionPreview:
    """Preview the deletion of those files of a checkpoint that the patterns choose; RequestError
    not_found or invalid.
    """
    record, _ = checkpoints.get_checkpoint(services, prefix)
    folder = checkpoint_folder(services, record.checkpoint.uuid)
    chosen = choose_files(folder, patterns)
    if len(chosen) == len(folder.files):
        return preview_deletion(services, record.checkpoint.uuid)
    return DeletionPreview(
        uuid=record.checkpoint.uuid,
        delete_files=len(chosen),
        delete_bytes=sum(file.size for file in chosen),
        delete_seconds=_seconds_at_limit(services, len(chosen)),
        problem=find_need(services, record),
    )


def find_need(services: Services, record: CheckpointRecord) -> str:
    """The reason why nothing of a checkpoint can be deleted now, "" if it can."""
    reference = record.checkpoint
    if holders := read_pins(services.table, [reference.uuid])[0].holders_text():
        return holders
    trial = services.engine.read_state(addresses.trial(reference.trial_id))
    if not isinstance(trial, TrialState) or trial.status.is_final:
        return ""
    is_latest = trial.checkpoint is not None and trial.checkpoint.uuid == reference.uuid
    return "its trial has not ended and needs it" if is_latest else ""


def _stored_files(files: int) -> int:
    """The number of files in the folder of a checkpoint with this many: the manifest is one
    more.
    """
    return files + 1


def _seconds_at_limit(services: Services, files: int) -> int:
    return math.ceil(files / deletion_limit(services.table))


def _describe_candidates(
    services: Services, experiment_id: int, candidates: Sequence[CheckpointCandidate]
) -> list[checkpoints.Checkpoint]:
    """Describe those of an experiment's checkpoints that have not gone since the inventory."""
    places = [
        (addresses.trial(candidate.trial_id), CHECKPOINT_PARTS + candidate.uuid)
        for candidate in candidates
    ]
    parts = services.engine.read_parts(places)
    records = [part for part in parts if isinstance(part, CheckpointRecord)]
    return checkpoints.checkpoint_answers(services, records, experiment_id)


def _finish(work: Generator[object, None, T]) -> T:
    """Run work that pauses to its end, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
