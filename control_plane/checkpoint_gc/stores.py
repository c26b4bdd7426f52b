"""The stores with the data of experiments, from which a collection deletes."""

from collections.abc import Callable
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition
from control_plane.agents.spec import parse_stored_config
from control_plane.checkpoint_stores.checkpoint_files import PURGE_VERSIONS, CheckpointFiles
from control_plane.checkpoint_stores.endpoints import EndpointRule, allow_any
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files, storage_fields
from control_plane.config.storage import CheckpointStorage
from control_plane.engine.engine import Engine
from control_plane.objects.store import ObjectStore
from control_plane.services import Services


class CollectionFailed(Exception):
    """Data cannot be deleted. The message is for users."""

    def __init__(self, message: str, *, is_transient: bool = True) -> None:
        """`is_transient`: whether a later try may succeed."""
        super().__init__(message)
        self.is_transient = is_transient


@dataclass(frozen=True)
class Stores:
    """The stores of a cluster with the data of experiments."""

    engine: Engine
    objects: ObjectStore
    """The object store with logs, metrics and archives of packages."""
    checkpoints: CheckpointStorage
    """The store for experiments whose configuration names no checkpoint store."""
    endpoints: EndpointRule = allow_any
    """The rule that decides which other stores the cluster may call."""
    cluster_id: str = ""
    """The id of this cluster in manifests. "": no checkpoint counts as the cluster's own."""
    purges_versions: bool = False
    """Whether the store `checkpoints` keeps versions that the collector deletes for good."""
    next_deletion_ms: Callable[[int], int | None] = lambda after_ms: None
    """Returns the first time after a time at which the cluster deletes expired logs and metrics, in
    epoch ms. None: the cluster deletes expired data at once.
    """

    def checkpoint_files(self, experiment_id: int, *, purge: bool = False) -> CheckpointFiles:
        """Open the store of an experiment's checkpoints. The experiment must exist.

        With `purge`, removals from the cluster's own store also delete older versions, as far as
        `purges_versions` allows. Otherwise a bucket that keeps versions keeps removed files.

        Raises:
            CollectionFailed: the cluster must not call the store, or the store cannot be opened.
            TableError: the state table failed.
        """
        definition = self.engine.read_part(addresses.experiment(experiment_id), "definition")
        assert isinstance(definition, Definition)
        config = parse_stored_config(definition).checkpoint_storage
        if problem := self.endpoints(config):
            raise CollectionFailed(f"{problem.message}; {problem.hint}")
        storage = storage_fields(config, self.checkpoints)
        if purge and self.purges_versions and config.type is None:
            storage[PURGE_VERSIONS] = "true"
        try:
            return open_checkpoint_files(storage)
        except OSError as error:
            raise CollectionFailed(str(error)) from None


def stores_of(services: Services) -> Stores:
    """Return the stores of the cluster of `services`."""
    return Stores(
        services.engine,
        services.objects,
        services.checkpoints,
        services.endpoints,
        services.cluster_id,
    )
