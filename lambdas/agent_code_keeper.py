"""The code of a cloud's instances, kept in the bucket of objects before any are launched."""

import logging
from collections.abc import Callable

from control_plane.agents.agent_code import keep_agent_code
from control_plane.objects.store import ObjectStore
from provisioner.clouds.provider import OutcomeUnknown

log = logging.getLogger(__name__)


class AgentCodeKeeper:
    """Keeps the code of the instances that are launched, which they fetch from the bucket, even if
    a later deployment has other code.
    """

    def __init__(self, object_store: Callable[[], ObjectStore]) -> None:
        self._object_store = object_store
        self._has_kept = False

    def keep(self) -> None:
        """Keep the code, unless this process has. Raises OutcomeUnknown without it."""
        if self._has_kept:
            return
        try:
            keep_agent_code(self._object_store())
        except Exception as error:
            log.exception("the agent's code is not in the bucket")
            text = f"the agent's code could not be written to the bucket: {type(error).__name__}"
            raise OutcomeUnknown(text) from error
        self._has_kept = True
