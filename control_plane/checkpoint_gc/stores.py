"""The stores that hold the data of experiments: what a collection removes it from."""

from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.experiment.state import Definition
from control_plane.agents.spec import parse_stored_config
from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles
from control_plane.checkpoint_stores.endpoints import EndpointRule, allow_any
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files, storage_fields
from control_plane.config.storage import CheckpointStorage
from control_plane.engine.engine import Engine
from control_plane.objects.store import ObjectStore
from control_plane.services import Services


class CollectionFailed(Exception):
    """Something cannot be collected; the message is for users. `is_transient`: it may be possible
    later.
    """

    def __init__(self, message: str, *, is_transient: bool = True) -> None:
        super().__init__(message)
        self.is_transient = is_transient


@dataclass(frozen=True)
class Stores:
    """The stores of a cluster. `objects` holds the logs; `checkpoints` is the store of checkpoints
    whose configuration names none, and `endpoints` says which others may be called. Checkpoints
    whose manifest names another cluster than `cluster_id` are that one's.
    """

    engine: Engine
    objects: ObjectStore
    checkpoints: CheckpointStorage
    endpoints: EndpointRule = allow_any
    cluster_id: str = ""

    def checkpoint_files(self, experiment_id: int) -> CheckpointFiles:
        """Open the store of the experiment's checkpoints.

        Raises:
            CollectionFailed: checkpoints cannot be removed from such a store, or it is unusable.
        """
        definition = self.engine.read_part(addresses.experiment(experiment_id), "definition")
        assert isinstance(definition, Definition)
        config = parse_stored_config(definition).checkpoint_storage
        if problem := self.endpoints(config):
            raise CollectionFailed(f"{problem.message}; {problem.hint}")
        storage = storage_fields(config, self.checkpoints)
        try:
            return open_checkpoint_files(storage)
        except OSError as error:
            raise CollectionFailed(str(error)) from None


def stores_of(services: Services) -> Stores:
    """The stores of the cluster that serves requests with these services."""
    return Stores(
        services.engine,
        services.objects,
        services.checkpoints,
        services.endpoints,
        services.cluster_id,
    )
