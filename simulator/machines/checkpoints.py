"""The store of simulated checkpoints, in a folder from which the collector deletes checkpoints."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint that was completely written."""

    uuid: str
    path: str
    """The path below the store's folder."""
    steps: int
    """The batches that the trial has trained."""
    batches: int
    """The batches in the weights, including the batches of trials that the weights come from."""
    size_bytes: int


class CheckpointStore:
    """The records of all checkpoints that were ever written, and the files of existing checkpoints.

    Args:
        root: the folder with the files.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checkpoints: dict[str, StoredCheckpoint] = {}

    def add_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        """Record a complete checkpoint, and write its manifest."""
        folder = self.root / checkpoint.path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_bytes(b"{}")
        self._checkpoints[checkpoint.uuid] = checkpoint

    def batches_in(self, uuid: str) -> int:
        """Return the batches in the weights of a checkpoint, which may be deleted by now.

        Raises KeyError if no such checkpoint was ever written.
        """
        return self._checkpoints[uuid].batches

    def find_checkpoint(self, uuid: str) -> StoredCheckpoint | None:
        """Return a checkpoint. Return None if it was never written or its manifest is deleted."""
        checkpoint = self._checkpoints.get(uuid)
        if checkpoint is None or not (self.root / checkpoint.path / "manifest.json").exists():
            return None
        return checkpoint
