"""The checkpoints that a run may read: the first checkpoint and all that the run stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from detcloud.core.checkpoint_reader import CheckpointDamaged, CheckpointReader, report_damage
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import CheckpointReference, Reporter, TrialSpec
from detcloud.storage import CheckpointStore


class CheckpointCatalog:
    """The references of the checkpoints that a run knows, and the store that contains the files."""

    def __init__(
        self,
        spec: TrialSpec,
        store: CheckpointStore | None,
        report: Reporter,
        *,
        on_cluster: bool,
        is_chief: bool,
    ) -> None:
        """Create a catalog with the run's first checkpoint, if any.

        A `store` of None means that checkpoint storage is disabled. The chief of a trial on a
        cluster reports damage of the first checkpoint.
        """
        self._spec = spec
        self._store = store
        self._report = report
        self._on_cluster = on_cluster
        self._reports_damage = on_cluster and is_chief
        self._known: dict[str, CheckpointReference] = {}
        if spec.latest_checkpoint is not None:
            self.add(spec.latest_checkpoint)

    def add(self, reference: CheckpointReference) -> None:
        """Add a stored checkpoint, or replace an entry with an equal UUID."""
        self._known[reference.uuid] = reference

    def discard(self, uuid: str) -> None:
        """Remove a deleted checkpoint. Do nothing for an unknown UUID."""
        self._known.pop(uuid, None)

    def resolve(self, checkpoint: str | CheckpointReference) -> CheckpointReference:
        """Return the reference of a checkpoint. A reference is returned unchanged.

        Without a cluster, an unknown UUID counts as a checkpoint of this run, even if the store has
        no such checkpoint. On a cluster, an unknown UUID raises DetcloudError.
        """
        if isinstance(checkpoint, CheckpointReference):
            return checkpoint
        if checkpoint in self._known:
            return self._known[checkpoint]
        if not self._on_cluster:
            spec = self._spec
            path = f"{spec.experiment_id}/{spec.trial_id}/{spec.epoch}/{checkpoint}"
            return CheckpointReference(checkpoint, spec.trial_id, path)
        known = ", ".join(self._known) or "none"
        raise DetcloudError(
            f"checkpoint {checkpoint!r} is not known to this trial; known: {known}. A trial may "
            "restore its latest checkpoint and those that it wrote itself"
        )

    def open_store(self) -> CheckpointStore:
        """Return the store. Raises DetcloudError if checkpoint storage is disabled."""
        if self._store is None:
            raise DetcloudError("checkpoint storage is disabled: there is nothing to restore from")
        return self._store

    @contextmanager
    def open_reader(self, checkpoint: str | CheckpointReference) -> Iterator[CheckpointReader]:
        """Yield a reader of the checkpoint.

        Raises DetcloudError if storage is disabled, or on a cluster if the UUID is unknown.
        Pass on CheckpointDamaged from the block. On the chief of a trial on a cluster, first print
        and report the damage if the run began from this checkpoint.
        """
        reader = CheckpointReader(self.open_store(), self.resolve(checkpoint))
        try:
            yield reader
        except CheckpointDamaged as damage:
            latest = self._spec.latest_checkpoint
            is_latest = latest is not None and latest.uuid == reader.reference.uuid
            if is_latest and self._reports_damage:
                report_damage(damage, reader.reference, self._report)
            raise
