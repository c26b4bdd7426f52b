"""The store of checkpoints: folders that appear when they are complete, below a root on a disk that
the collector works on.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A complete checkpoint. `batches` are in its weights, among them those of the trials that it
    was copied from.
    """

    uuid: str
    path: str
    steps: int
    batches: int
    size_bytes: int


class CheckpointStore:
    """The checkpoints that were ever complete, and the files of those that are still there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checkpoints: dict[str, StoredCheckpoint] = {}

    def add_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        """Write a checkpoint, which is complete from now on."""
        folder = self.root / checkpoint.path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_bytes(b"{}")
        self._checkpoints[checkpoint.uuid] = checkpoint

    def batches_in(self, uuid: str) -> int:
        """Return how many batches are in the weights of a checkpoint that was complete once."""
        return self._checkpoints[uuid].batches

    def find_checkpoint(self, uuid: str) -> StoredCheckpoint | None:
        """Return a checkpoint, None if it never was complete or is gone."""
        checkpoint = self._checkpoints.get(uuid)
        if checkpoint is None or not (self.root / checkpoint.path / "manifest.json").exists():
            return None
        return checkpoint
