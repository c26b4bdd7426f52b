"""Checkpoints in a store without a record in the state table: listing and removal.

A run stores unrecorded checkpoints after its trial moved to another agent, or if its agent never
reports again. Several clusters may share a store and use the same experiment numbers. Therefore
only checkpoints with a manifest that names this cluster are removed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from control_plane.actors.experiment.state import ExperimentState
from control_plane.checkpoint_gc.checkpoint_inventory import checkpoint_records, trial_ids
from control_plane.checkpoint_gc.rate_limit import NO_FILES, Steps, remove_checkpoint_folder
from control_plane.checkpoint_gc.removal import EPOCH, UUID
from control_plane.checkpoint_gc.stores import CollectionFailed, Stores
from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles, NoSuchFile
from control_plane.checkpoint_stores.manifests import manifest_cluster
from detcloud.shared.checkpoint_limits import MANIFEST, MANIFEST_BYTES_MAX


@dataclass(frozen=True)
class UnrecordedCheckpoint:
    """A checkpoint folder of a trial for which the trial has no record."""

    experiment_id: int
    trial_id: int
    epoch: int
    """The number of the run that stored the checkpoint; UPLOADS_EPOCH for a user's upload."""
    uuid: str
    is_complete: bool
    """Whether the folder has a manifest."""
    is_own: bool
    """Whether the manifest names this cluster."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the folders from the root to the checkpoint's folder."""
        return str(self.experiment_id), str(self.trial_id), str(self.epoch), self.uuid


def find_unrecorded(
    stores: Stores, experiment_id: int, trial_id: int
) -> Iterator[UnrecordedCheckpoint]:
    """Yield the checkpoint folders of a trial that have no record in any state.

    Folders with an invalid epoch or UUID are skipped. While the trial runs, the result includes
    checkpoints that the trial is storing.

    Raises:
        CollectionFailed: the store cannot be opened or read.
        TableError: the state table failed.
    """
    files = stores.checkpoint_files(experiment_id)
    try:
        # Folders are listed before the records are read. A checkpoint that is recorded between the
        # two reads is then among the records.
        found = [
            (epoch, uuid)
            for epoch, uuid in files.list_checkpoints(experiment_id, trial_id)
            if EPOCH.fullmatch(epoch) and UUID.fullmatch(uuid)
        ]
        records = checkpoint_records(stores.engine.table, trial_id) if found else []
        recorded = {record.checkpoint.uuid for record in records}
        for epoch, uuid in found:
            if uuid not in recorded:
                path = f"{experiment_id}/{trial_id}/{epoch}/{uuid}/{MANIFEST}"
                cluster = _read_cluster(files, path)
                is_own = cluster is not None and cluster == stores.cluster_id != ""
                yield UnrecordedCheckpoint(
                    experiment_id, trial_id, int(epoch), uuid, cluster is not None, is_own
                )
    except OSError as error:
        text = f"checkpoints in {files.location_text(())} cannot be listed"
        raise CollectionFailed(f"{text}: {error.strerror or error}") from None


def remove_unrecorded(stores: Stores, experiment: ExperimentState) -> Steps:
    """Remove a deleted experiment's unrecorded checkpoints with a manifest of this cluster.

    Also remove the folders above that are then empty. Other unrecorded checkpoints stay. A bucket
    that keeps versions keeps the removed files, because no row says who may still need them.

    Raises:
        CollectionFailed: the store cannot be opened or read, or a file cannot be removed.
        TableError: the state table failed.
    """
    files = stores.checkpoint_files(experiment.experiment_id)
    for trial_id in trial_ids(stores.engine, experiment):
        for one in find_unrecorded(stores, experiment.experiment_id, trial_id):
            if not one.is_own:
                continue
            try:
                yield from remove_checkpoint_folder(files, one.parts, prune=True)
            except OSError as error:
                text = f"{files.location_text(one.parts)}: {error.strerror or error}"
                raise CollectionFailed(text) from None
        yield NO_FILES


def _read_cluster(files: CheckpointFiles, path: str) -> str | None:
    """Return the cluster's id in the manifest at `path`, or None if the manifest does not exist.

    Return "" if the manifest is too large, cannot be parsed, or names no cluster. Raises OSError.
    """
    try:
        manifest = files.open_file(path)
    except NoSuchFile:
        return None
    is_readable = manifest.size <= MANIFEST_BYTES_MAX
    return manifest_cluster(b"".join(manifest.blocks)) if is_readable else ""
