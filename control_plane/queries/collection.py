"""Previews of checkpoint deletion: the checkpoints that would be deleted, and the time needed."""

import math
from collections.abc import Generator, Sequence
from typing import TypeVar

from control_plane.actors import addresses
from control_plane.actors.records import Retention
from control_plane.actors.trial.checkpoints import CHECKPOINT_PARTS, CheckpointRecord
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
    """The effect that a collection would have now.

    `delete` lists the first 500 of the `delete_count` checkpoints that would be deleted.
    `delete_files` includes manifests. `delete_seconds` is the time needed at the cluster's limit
    of deletions per second, if no other collection runs.
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
    """Return the effect of a collection of the experiment's checkpoints, without deleting anything.

    All checkpoint records of the experiment are read.

    Args:
        services: the services that read the state.
        experiment_id: the experiment.
        save_experiment_best: the number of best checkpoints of the experiment to keep.
        save_trial_best: the number of best checkpoints of each trial to keep.
        save_trial_latest: the number of latest checkpoints of each trial to keep. For each of the
            three numbers, None means the experiment's current setting.
        delete_experiment: preview the deletion of the experiment; the three numbers are ignored.

    Raises:
        RequestError: not_found, if the experiment does not exist.
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
    delete_bytes = sum(candidate.size_bytes for candidate in unwanted)
    delete_files = sum(_stored_files(candidate.files) for candidate in unwanted)
    return CollectionPreview(
        delete=_describe_candidates(services, experiment_id, unwanted[:SHOWN_MAX]),
        delete_count=len(unwanted),
        delete_files=delete_files,
        delete_bytes=delete_bytes,
        delete_seconds=_seconds_at_limit(services, delete_files),
        keep_count=len(candidates) - len(unwanted),
        keep_bytes=sum(candidate.size_bytes for candidate in candidates) - delete_bytes,
    )


class DeletionPreview(Answer):
    """The effect that deleting a checkpoint, or some of the files, would have now.

    `delete_files`, `delete_bytes` and `delete_seconds` are as in `CollectionPreview`. `problem` is
    the reason why the cluster would refuse the deletion, or "".
    """

    uuid: str
    delete_files: int
    delete_bytes: int
    delete_seconds: int
    problem: str


def preview_deletion(services: Services, prefix: str) -> DeletionPreview:
    """Return the effect of deleting a checkpoint, given a prefix of the UUID. Nothing is deleted.

    For a checkpoint whose files are deleted already, all numbers are 0 and `problem` is "".

    Raises:
        RequestError: not_found, if no checkpoint matches or its trial was deleted; invalid, if
            several match or `prefix` is not the start of a UUID.
    """
    record, _ = checkpoints.get_checkpoint(services, prefix)
    has_files = record.state.has_files
    files = _stored_files(record.files) if has_files else 0
    return DeletionPreview(
        uuid=record.checkpoint.uuid,
        delete_files=files,
        delete_bytes=record.size_bytes if has_files else 0,
        delete_seconds=_seconds_at_limit(services, files),
        problem=find_need(services, record) if has_files else "",
    )


def preview_partial_deletion(
    services: Services, prefix: str, patterns: Sequence[str]
) -> DeletionPreview:
    """Return the effect of deleting the checkpoint's files that match any of the patterns.

    If all files match, this is the effect of deleting the whole checkpoint. The manifest is read
    from the store. Nothing is deleted.

    Raises:
        RequestError: not_found, if no checkpoint matches, its trial or files were deleted, or the
            manifest is missing. invalid, if several checkpoints match, `prefix` is not the start of
            a UUID, or no file matches. conflict, if the path or the manifest is not the recorded
            one, or if the cluster may not call the store's endpoints. unavailable, if the store
            does not answer.
        OSError: the store cannot be opened.
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
    """Return the reason why the checkpoint must not be deleted now, or "" if deleting is allowed.

    The reason is a pin, or a trial that has not ended and continues from the checkpoint, or whose
    newest snapshot it is.
    """
    reference = record.checkpoint
    if holders := read_pins(services.table, [reference.uuid])[0].holders_text():
        return holders
    trial = services.experiments.read_trial(reference.trial_id)
    if trial is None or trial.status.is_final:
        return ""
    snapshot = None if trial.snapshot is None else trial.snapshot.checkpoint
    needed = {one.uuid for one in (trial.checkpoint, snapshot) if one is not None}
    return "its trial has not ended and needs it" if reference.uuid in needed else ""


def _stored_files(files: int) -> int:
    """Return the number of files in a checkpoint's folder: `files` and the manifest."""
    return files + 1


def _seconds_at_limit(services: Services, files: int) -> int:
    """Return the seconds that deleting `files` files takes at the cluster's limit of deletions."""
    return math.ceil(files / deletion_limit(services.table))


def _describe_candidates(
    services: Services, experiment_id: int, candidates: Sequence[CheckpointCandidate]
) -> list[checkpoints.Checkpoint]:
    """Return the checkpoints of the candidates, in this order. Skip those whose records no longer
    exist.
    """
    places = [
        (addresses.trial(candidate.trial_id), CHECKPOINT_PARTS + candidate.uuid)
        for candidate in candidates
    ]
    parts = services.engine.read_parts(places)
    records = [part for part in parts if isinstance(part, CheckpointRecord)]
    return checkpoints.checkpoint_answers(services, records, experiment_id)


def _finish(work: Generator[object, None, T]) -> T:
    """Run a generator to the end, ignore the yielded values, and return the generator's result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
