"""A handle on one experiment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from detcloud.client.trial import Checkpoint, Trial

if TYPE_CHECKING:
    from detcloud.client.cluster import Cluster

ENDED_STATES = frozenset({"COMPLETED", "CANCELED", "ERROR"})


class Experiment:
    """An experiment as the cluster last described it: `data` has the fields of docs/api.md."""

    def __init__(self, cluster: Cluster, data: dict[str, Any]) -> None:
        self._cluster = cluster
        self.data = data

    @property
    def id(self) -> int:
        return int(self.data["id"])

    @property
    def state(self) -> str:
        return str(self.data["state"])

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES

    def refresh(self) -> None:
        self.data = self._cluster.get(f"/experiments/{self.id}")

    def pause(self) -> None:
        """Asks for a checkpoint of each trial and frees its slots."""
        self._command("pause")

    def activate(self) -> None:
        """Goes on from where `pause` stopped."""
        self._command("activate")

    def cancel(self) -> None:
        """Ends the experiment at the trials' next checkpoint."""
        self._command("cancel")

    def kill(self) -> None:
        """Ends the experiment at once."""
        self._command("kill")

    def trials(self, limit: int | None = None) -> Iterator[Trial]:
        items = self._cluster.items(f"/experiments/{self.id}/trials", limit)
        return (Trial(self._cluster, item) for item in items)

    def checkpoints(self) -> Iterator[Checkpoint]:
        items = self._cluster.items(f"/experiments/{self.id}/checkpoints")
        return (Checkpoint(self._cluster, item) for item in items)

    def wait(
        self, polling_seconds: float = 1.0, sleep: Callable[[float], None] = time.sleep
    ) -> str:
        """Returns the state in which the experiment ended."""
        while not self.ended:
            sleep(polling_seconds)
            self.refresh()
        return self.state

    def _command(self, name: str) -> None:
        self.data = self._cluster.post(f"/experiments/{self.id}/{name}")
