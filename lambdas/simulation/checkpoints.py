"""The store of checkpoints: folders that appear when they are complete, below a root on a disk that
the collector works on.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stored:
    """A complete checkpoint. `batches` are in its weights, those of the trials that it was copied
    from among them.
    """

    uuid: str
    path: str
    steps: int
    batches: int
    size_bytes: int


class Checkpoints:
    """What was ever completed, and whether it is still there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stored: dict[str, Stored] = {}

    def complete(self, stored: Stored) -> None:
        """It is there, as a whole."""
        folder = self.root / stored.path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_bytes(b"{}")
        self._stored[stored.uuid] = stored

    def batches_in(self, uuid: str) -> int:
        """Batches in the weights of a checkpoint that was complete once."""
        return self._stored[uuid].batches

    def find(self, uuid: str) -> Stored | None:
        """The checkpoint, None if it never was or is not any more."""
        stored = self._stored.get(uuid)
        if stored is None or not (self.root / stored.path / "manifest.json").exists():
            return None
        return stored
