"""Where the data of experiments lie, and what it is called when they cannot be removed there."""

from dataclasses import dataclass
from pathlib import Path

from control_plane.actors import addresses
from control_plane.actors.experiment_state import Definition
from control_plane.agents.spec import storage_of, stored_config
from control_plane.dispatch.engine import Engine
from control_plane.objects.store import ObjectStore


class CollectionFailed(Exception):
    """Something cannot be collected; the message is for users. `passing`: it may be later."""

    def __init__(self, message: str, *, passing: bool = True) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True)
class Stores:
    """`objects` keeps the logs; `checkpoints` is the folder of checkpoints where a configuration
    names none.
    """

    engine: Engine
    objects: ObjectStore
    checkpoints: Path

    def root(self, experiment_id: int) -> Path:
        """The folder that the paths of the experiment's checkpoints begin at.

        Raises:
            CollectionFailed: they lie in a store of another kind.
        """
        definition = self.engine.part(addresses.experiment(experiment_id), "definition")
        assert isinstance(definition, Definition)
        config = stored_config(definition).checkpoint_storage
        storage = storage_of(config, self.checkpoints)
        if storage is None:
            text = f"checkpoints cannot be removed from a {config.type} store yet"
            raise CollectionFailed(text, passing=False)
        return Path(storage["path"])
