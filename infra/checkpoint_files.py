"""The restore of checkpoint files that the state names and the bucket of checkpoints lacks.

The state decides which files belong into the bucket, so that files that the cluster deleted itself
stay deleted. The files come from the bucket's own versions, and then from the copy in another
region.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from control_plane.actors import addresses
from control_plane.actors.experiment.state import LISTING, Definition, ExperimentState
from control_plane.actors.messages.trial import CheckpointVerified
from control_plane.actors.records import Status
from control_plane.actors.trial.checkpoints import CheckpointRecord, CheckpointState
from control_plane.agents.spec import parse_stored_config
from control_plane.checkpoint_gc.checkpoint_inventory import checkpoint_records, trial_ids
from control_plane.engine.engine import Engine
from control_plane.state.row_ranges import read_rows
from detcloud.shared.checkpoint_limits import MANIFEST, MISSING_CAUSE
from detcloud.shared.event_parts import TENSORBOARD_FOLDER
from detcloud.shared.file_patterns import matches_any
from infra.bucket_objects import (
    Buckets,
    NoBucket,
    ObjectVersion,
    choose_newest,
    choose_versions,
    copy_all,
)
from infra.restoration import FilesReport

_AT_ONCE: Final = 8
EVENT_FILES: Final = f"{TENSORBOARD_FOLDER}/"


def list_undeleted(engine: Engine) -> Iterator[ExperimentState]:
    """Yield the states of all experiments that are not deleted. Raise TableError."""
    for row in read_rows(engine.table, LISTING):
        experiment = engine.read_state(addresses.experiment(int(row.key.sort)))
        if isinstance(experiment, ExperimentState) and experiment.status is not Status.DELETED:
            yield experiment


def list_own_checkpoints(
    engine: Engine, *, only_unended: bool = False
) -> Iterator[CheckpointRecord]:
    """Yield the records of all checkpoints with files in the cluster's own bucket.

    Deleted experiments, checkpoints that are deleted or being deleted, unreadable records, and
    experiments with a `checkpoint_storage` of their own are left out. With `only_unended`, ended
    experiments are left out, too. Raise TableError.
    """
    for experiment in list_undeleted(engine):
        if only_unended and experiment.status.is_final:
            continue
        address = addresses.experiment(experiment.experiment_id)
        definition = engine.read_part(address, "definition")
        if not isinstance(definition, Definition):
            continue
        if parse_stored_config(definition).checkpoint_storage.type is not None:
            continue
        for trial_id in trial_ids(engine, experiment):
            for record in checkpoint_records(engine.table, trial_id):
                if record.state.has_files and record.checkpoint.path:
                    yield record


def restore_files(
    buckets: Buckets,
    records: Iterable[CheckpointRecord],
    bucket: str,
    copy: str,
    moment: datetime | None = None,
    note_whole: Callable[[CheckpointRecord], object] = lambda record: None,
) -> FilesReport:
    """Restore the files that checkpoints lack, and return the outcome. A repeated call continues.

    Args:
        records: the checkpoints that must have all files.
        bucket: the bucket of checkpoints.
        copy: the bucket's copy in another region; empty without copies.
        moment: the time at which the files were intact; None for the content that was written
            first.
        note_whole: called for each checkpoint that has all files.

    Raises:
        NoBucket: `bucket` does not exist. A missing copy is no error.
        Exception: the errors of the cloud and of reading `records`.
    """
    present = _count_files(buckets.objects(bucket))
    intact = 0
    damaged: list[CheckpointRecord] = []
    for record in records:
        if _is_complete(record, present.get(record.checkpoint.path, _NOTHING)):
            intact += 1
            note_whole(record)
        else:
            damaged.append(record)
    restore = partial(_restore_checkpoint, buckets, bucket, copy, moment)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(restore, damaged))
    pairs = list(zip(damaged, outcomes, strict=True))
    restored = [record for record, (_, is_whole) in pairs if is_whole]
    for record in restored:
        note_whole(record)
    return FilesReport(
        intact,
        tuple(record.checkpoint.path for record in restored),
        sum(files for files, _ in outcomes),
        tuple(record.checkpoint.path for record, (_, is_whole) in pairs if not is_whole),
    )


def withdraw_damage(engine: Engine, record: CheckpointRecord) -> bool:
    """Mark a checkpoint with all files as COMPLETED again if a run missed files, and return True.

    Return False, and change nothing, for a checkpoint that is not DAMAGED, or that has a damage of
    another cause: nobody has read the content of the files. The trial's next run may start from
    the checkpoint again. Raise CommandRefused if the trial refuses the command, and TableError.
    """
    is_marked = record.state is CheckpointState.DAMAGED
    if not is_marked or not record.damage.startswith(MISSING_CAUSE):
        return False
    reference = record.checkpoint
    command = CheckpointVerified(reference.uuid)
    return (
        engine.execute_command(addresses.trial(reference.trial_id), command)
        == CheckpointState.COMPLETED
    )


def restore_event_files(
    buckets: Buckets, engine: Engine, bucket: str, copy: str, moment: datetime | None = None
) -> int:
    """Restore the missing TensorBoard files of undeleted experiments, and return the number.

    Without `moment`, the newest content is restored, because trials write these files again.
    Existing files stay. Raise NoBucket without `bucket`, TableError and the errors of the cloud.
    """
    undeleted = {str(experiment.experiment_id) for experiment in list_undeleted(engine)}
    present = {item.key for item in buckets.objects(bucket, EVENT_FILES)}
    restored = 0
    for source in filter(None, (bucket, copy)):
        try:
            chosen = choose_newest(buckets.versions(source, EVENT_FILES), moment)
        except NoBucket:
            continue
        lost = [
            found
            for found in chosen
            if found.key not in present and found.key.split("/")[1] in undeleted
        ]
        copy_all(buckets, source, lost, bucket)
        present.update(found.key for found in lost)
        restored += len(lost)
    return restored


@dataclass(frozen=True)
class _FolderFiles:
    """The files of a checkpoint's folder, without the manifest."""

    files: int = 0
    """The number of files."""
    size: int = 0
    """The sum of their sizes in bytes."""
    has_manifest: bool = False
    """Whether the folder has a manifest."""

    def with_file(self, name: str, size: int) -> "_FolderFiles":
        """Return the folder with a further file."""
        if name == MANIFEST:
            return _FolderFiles(self.files, self.size, has_manifest=True)
        return _FolderFiles(self.files + 1, self.size + size, self.has_manifest)


_NOTHING: Final = _FolderFiles()


def _count_files(found: Iterable[ObjectVersion]) -> dict[str, _FolderFiles]:
    """Return the files of each checkpoint's folder, EXPERIMENT/TRIAL/RUN/UUID."""
    counted: dict[str, _FolderFiles] = {}
    for item in found:
        parts = item.key.split("/", 4)
        if len(parts) == 5:
            folder = "/".join(parts[:4])
            before = counted.get(folder, _NOTHING)
            counted[folder] = before.with_file(parts[4], item.size)
    return counted


def _is_complete(record: CheckpointRecord, found: _FolderFiles) -> bool:
    """Return whether a folder has all files of a checkpoint.

    While the removal of some files is in progress, the folder has more files than the record.
    """
    has_files = found.files >= record.files and found.size >= record.size_bytes
    return found.has_manifest and has_files


def _restore_checkpoint(
    buckets: Buckets, bucket: str, copy: str, moment: datetime | None, record: CheckpointRecord
) -> tuple[int, bool]:
    """Restore the files of a checkpoint; return the number, and whether the checkpoint is whole."""
    prefix = f"{record.checkpoint.path}/"
    restored = 0
    sources: Sequence[tuple[str, Callable[[ObjectVersion], bool]]] = (
        # A current version of the bucket itself need not be copied.
        (bucket, lambda found: found.ended is not None),
        (copy, lambda found: True),
    )
    current = {item.key: item.size for item in buckets.objects(bucket, prefix)}
    for source, is_useful in sources:
        if not source or _is_complete(record, _folder(prefix, current)):
            continue
        try:
            chosen = choose_versions(buckets.versions(source, prefix), moment)
        except NoBucket:
            continue
        for found in filter(is_useful, chosen):
            name = found.key.removeprefix(prefix)
            is_deleted = matches_any(name, record.deleted_patterns)
            if is_deleted or current.get(found.key) == found.size:
                continue
            buckets.copy(source, found, bucket)
            current[found.key] = found.size
            restored += 1
    return restored, _is_complete(record, _folder(prefix, current))


def _folder(prefix: str, sizes: dict[str, int]) -> _FolderFiles:
    """Return the files below a prefix."""
    found = _NOTHING
    for key, size in sizes.items():
        found = found.with_file(key.removeprefix(prefix), size)
    return found
