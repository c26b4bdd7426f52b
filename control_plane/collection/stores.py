"""The stores that hold the data of experiments, and how checkpoints are removed from each type.

A new type of checkpoint store is a module with a function in `_CHECKPOINT_FILES`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition
from control_plane.agents.spec import CheckpointPlace, parse_stored_config, storage_fields
from control_plane.collection.bucket_files import open_bucket_files
from control_plane.collection.folder_files import open_folder_files
from control_plane.engine.engine import Engine
from control_plane.objects.store import ObjectStore


class CollectionFailed(Exception):
    """Something cannot be collected; the message is for users. `is_transient`: it may be possible
    later.
    """

    def __init__(self, message: str, *, is_transient: bool = True) -> None:
        super().__init__(message)
        self.is_transient = is_transient


class CheckpointFiles(Protocol):
    """The files of checkpoints in one store, in folders like EXPERIMENT/TRIAL/EPOCH/UUID.

    Every method may be repeated and raises OSError, FileNotFoundError where the store itself is
    missing, and ValueError for parts that are no plain names.
    """

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[None]:
        """Remove a folder with all it holds and, to `prune`, those above it that are left empty.

        Yields after every few entries, and may be abandoned there. What is gone already is no
        error.
        """

    def sync_folder(self, parts: tuple[str, ...]) -> None:
        """Make the removal of entries from a folder durable."""

    def remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        """Remove a folder and those above it as far as they are empty."""

    def location_text(self, parts: tuple[str, ...]) -> str:
        """A folder's location in words for users."""


_CHECKPOINT_FILES: Final[Mapping[str, Callable[[Mapping[str, str]], CheckpointFiles]]] = (
    MappingProxyType(
        {
            "directory": open_folder_files,
            "shared_fs": open_folder_files,
            "s3": open_bucket_files,
        }
    )
)
"""Opens the checkpoints of a spec's `storage`, by its type. Raises OSError."""


@dataclass(frozen=True)
class Stores:
    """The stores of a cluster. `objects` holds the logs; `checkpoints` is where checkpoints are
    whose configuration names no place.
    """

    engine: Engine
    objects: ObjectStore
    checkpoints: CheckpointPlace

    def checkpoint_files(self, experiment_id: int) -> CheckpointFiles:
        """Open the store of the experiment's checkpoints.

        Raises:
            CollectionFailed: checkpoints cannot be removed from such a store, or it is unusable.
        """
        definition = self.engine.read_part(addresses.experiment(experiment_id), "definition")
        assert isinstance(definition, Definition)
        config = parse_stored_config(definition).checkpoint_storage
        storage = storage_fields(config, self.checkpoints)
        if storage is None:
            text = f"checkpoints cannot be removed from a {config.type} store yet"
            raise CollectionFailed(text, is_transient=False)
        try:
            return _CHECKPOINT_FILES[storage["type"]](storage)
        except OSError as error:
            raise CollectionFailed(str(error)) from None
