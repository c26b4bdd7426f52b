"""Storage of the agent's code in the object store before the launch of instances."""

import logging
from collections.abc import Callable

from control_plane.agents.agent_code import keep_agent_code
from control_plane.objects.store import ObjectStore
from provisioner.clouds.provider import OutcomeUnknown

log = logging.getLogger(__name__)


class AgentCodeKeeper:
    """A writer of the agent's code to the object store, once per process.

    Instances download the code by its digest, even if a later deployment has different code.

    Args:
        object_store: returns the store. Called on the first write.
    """

    def __init__(self, object_store: Callable[[], ObjectStore]) -> None:
        self._object_store = object_store
        self._has_kept = False

    def keep(self) -> None:
        """Write this cluster's archive of the agent's code to the object store.

        Do nothing if an earlier call of this object succeeded or the archive is already stored.
        Raises OutcomeUnknown (a CloudError), and logs the cause, if the archive cannot be written.
        The next call then tries again.
        """
        if self._has_kept:
            return
        try:
            keep_agent_code(self._object_store())
        except Exception as error:
            log.exception("the agent's code is not in the bucket")
            text = f"the agent's code could not be written to the bucket: {type(error).__name__}"
            raise OutcomeUnknown(text) from error
        self._has_kept = True
