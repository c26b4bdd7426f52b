"""Where the data of experiments lie, and what it is called when they cannot be removed there."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from control_plane.actors import addresses
from control_plane.actors.experiment_state import Definition
from control_plane.agents.spec import Checkpoints, storage_of, stored_config
from control_plane.collection.buckets import BucketFiles
from control_plane.collection.folders import FolderFiles
from control_plane.dispatch.engine import Engine
from control_plane.objects.store import ObjectStore
from detcloud.s3 import BucketPlace, bucket_of


class CollectionFailed(Exception):
    """Something cannot be collected; the message is for users. `passing`: it may be later."""

    def __init__(self, message: str, *, passing: bool = True) -> None:
        super().__init__(message)
        self.passing = passing


class CheckpointFiles(Protocol):
    """The files of checkpoints in one store, by folders like EXPERIMENT/TRIAL/EPOCH/UUID.

    Every method may be repeated and raises OSError, FileNotFoundError where the store itself is
    not there, and ValueError for parts that are no plain names.
    """

    def remove(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[None]:
        """Removes a folder with all it holds and, to `prune`, those above it that are left empty.

        Rests, by yielding, and may be left at any rest. What is gone already is no error.
        """

    def sync(self, parts: tuple[str, ...]) -> None:
        """Makes what was removed from a folder stay away, whatever happens to the machine."""

    def remove_empty(self, parts: tuple[str, ...]) -> None:
        """Removes a folder and those above it as far as they are empty."""

    def place(self, parts: tuple[str, ...]) -> str:
        """What a folder is called where people read of it."""


@dataclass(frozen=True)
class Stores:
    """`objects` keeps the logs; `checkpoints` is where those are whose configuration names no
    place.
    """

    engine: Engine
    objects: ObjectStore
    checkpoints: Checkpoints

    def files(self, experiment_id: int) -> CheckpointFiles:
        """The store of the experiment's checkpoints.

        Raises:
            CollectionFailed: it is of another kind, or cannot be used.
        """
        definition = self.engine.part(addresses.experiment(experiment_id), "definition")
        assert isinstance(definition, Definition)
        config = stored_config(definition).checkpoint_storage
        storage = storage_of(config, self.checkpoints)
        if storage is None:
            text = f"checkpoints cannot be removed from a {config.type} store yet"
            raise CollectionFailed(text, passing=False)
        if storage["type"] == "s3":
            return _bucket_files(storage)
        return FolderFiles(Path(storage["path"]))


def _bucket_files(storage: dict[str, str]) -> BucketFiles:
    try:
        return BucketFiles(bucket_of(BucketPlace.of(storage)))
    except OSError as error:
        raise CollectionFailed(str(error)) from None
