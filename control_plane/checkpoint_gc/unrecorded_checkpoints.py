"""Checkpoints in a store without a record here: found, and removed with their experiment.

They are what a run stored that had lost its trial to another agent, or that nobody heard of again.
Several clusters may share a store and count their experiments alike, so that only those go whose
manifest names this cluster.
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
    """A folder among a trial's checkpoints that the trial has no record of.

    `is_complete`: it has a manifest; `is_own`: the manifest names this cluster.
    """

    experiment_id: int
    trial_id: int
    epoch: int
    uuid: str
    is_complete: bool
    is_own: bool

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that lead to it."""
        return str(self.experiment_id), str(self.trial_id), str(self.epoch), self.uuid


def find_unrecorded(
    stores: Stores, experiment_id: int, trial_id: int
) -> Iterator[UnrecordedCheckpoint]:
    """Find the folders among a trial's checkpoints that are not recorded. While the trial runs they
    include what it is storing.

    Raises:
        CollectionFailed: the store cannot be opened or read.
    """
    files = stores.checkpoint_files(experiment_id)
    try:
        # Before the records, so that none that is recorded meanwhile is missing among them.
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
    """Remove the complete checkpoints that trials of this cluster stored for a deleted experiment
    and that are not recorded. Raises CollectionFailed.
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
    """Read the cluster's id from a manifest; None where there is no manifest."""
    try:
        manifest = files.open_file(path)
    except NoSuchFile:
        return None
    is_readable = manifest.size <= MANIFEST_BYTES_MAX
    return manifest_cluster(b"".join(manifest.blocks)) if is_readable else ""
