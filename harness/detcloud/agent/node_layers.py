"""The layers of all allocations of a node. Each layer is archived once its trial runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from detcloud.agent.runtime import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from detcloud.agent.allocation.allocation import Allocation
    from detcloud.agent.layer_archives.cluster import ClusterArchives
    from detcloud.agent.layer_archives.trial_layers import TrialLayers
    from detcloud.agent.layer_archives.uploads import LayerUploads
    from detcloud.agent.runtime import ContainerRuntime

TRANSFERS = "layer-transfers"


class NodeLayers:
    """The layers of the node's allocations, without allocations of an earlier agent.

    The files of an earlier agent's allocations may name the wrong experiments. `work` is the
    agent's work directory. `log_line` writes to the agent's log.
    """

    def __init__(
        self,
        work: Path,
        runtime: ContainerRuntime,
        archives: ClusterArchives,
        log_line: Callable[[str], None],
    ) -> None:
        self._transfers = work / TRANSFERS
        self._runtime = runtime
        self._archives = archives
        self._log_line = log_line
        self._waiting: dict[str, tuple[Allocation, TrialLayers]] = {}
        self._uploads: LayerUploads | None = None

    def clean(self) -> None:
        """Delete unfinished transfers of an earlier agent."""
        if self._transfers.is_dir():
            self._make_uploads().clean()

    def begin(self, allocation: Allocation, spec: Mapping[str, Any]) -> TrialLayers:
        """Create the layers of a new allocation.

        `archive_running` will archive the layers once the trial runs. Fetching of layers stops as
        soon as the allocation was killed or must preempt.
        """
        from detcloud.agent.layer_archives.trial_layers import TrialLayers

        def is_wanted() -> bool:
            # Notices of the machine's end are merged into the directives as `preempt`.
            directives = allocation.directory.read_directives() or {}
            return allocation.is_needed and not directives.get("preempt")

        experiment = str(int(spec.get("experiment_id", 0)))
        layers = TrialLayers(
            self._archives,
            allocation.directory,
            self._transfers,
            experiment,
            is_wanted,
            self._log_line,
        )
        self._waiting[allocation.allocation] = (allocation, layers)
        return layers

    def archive_running(self) -> None:
        """Queue the used layers of each allocation whose trial has begun to run.

        Forget allocations that were queued or have ended. A thread does the archiving.
        """
        for name, (allocation, layers) in list(self._waiting.items()):
            if not allocation.is_active:
                self.forget(name)
                continue
            status = self._runtime.poll(allocation.directory.agent) if layers.used else None
            if status and status.phase is Phase.RUNNING and status.stage == "trial":
                self.forget(name)
                self._make_uploads().add(layers, partial(_is_active, allocation))

    def forget(self, name: str) -> None:
        """Stop waiting for the allocation's trial, so that the layers are not archived.

        `name` is the allocation's id. Do nothing if the allocation is unknown or already queued.
        """
        self._waiting.pop(name, None)

    def _make_uploads(self) -> LayerUploads:
        from detcloud.agent.layer_archives.uploads import LayerUploads

        if self._uploads is None:
            self._uploads = LayerUploads(self._archives, self._transfers, self._log_line)
        return self._uploads


def _is_active(allocation: Allocation) -> bool:
    return allocation.is_active
