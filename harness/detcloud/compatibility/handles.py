"""The base of the objects of Determined's `experimental` modules, and checkpoints."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

from detcloud.client import Checkpoint as ClusterCheckpoint


class OrderBy(Enum):
    """The order of a list."""

    ASC = ASCENDING = "asc"
    DESC = DESCENDING = "desc"


class DownloadMode(Enum):
    """Determined's ways to a checkpoint's files, which here all come from the storage."""

    DIRECT = "direct"
    MASTER = "master"
    AUTO = "auto"


class Handle:
    """An object of the cluster, with its fields; a name that is not there says what to do."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(self._found, name):
            return getattr(self._found, name)
        kind = type(self).__name__
        raise AttributeError(
            f"{kind}.{name} is not supported by detcloud: use detcloud.Client "
            f"or the detcloud command with a{'n' if kind[0] in 'AE' else ''} {kind.lower()}"
        )

    def reload(self) -> None:
        """Ask the cluster for the present state."""
        self._found.refresh()


class Checkpoint(Handle):
    """Files that a trial stored together."""

    _found: ClusterCheckpoint

    def download(self, path: str | None = None, mode: object = None) -> str:
        """Fetch the files into `path`, by default `checkpoints/UUID`, unless it is there; the path.

        They come from the cluster's storage however `mode` is.
        """
        folder = Path(path or f"checkpoints/{self.uuid}")
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            self._found.download(folder)
        return str(folder)

    def load(self, path: str | None = None, **options: Any) -> Any:
        """Download the checkpoint and make its PyTorchTrial again, as releases up to 0.19 did."""
        from detcloud.pytorch import load_trial_from_checkpoint_path

        return load_trial_from_checkpoint_path(self.download(path), **options)

    def delete(self) -> None:
        """Delete the files."""
        self._found.delete()
