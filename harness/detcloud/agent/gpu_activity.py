"""The activity of the GPUs of runs with an `idle_timeout`: a run whose GPU computes is not idle."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from detcloud.agent.slots import SlotsUnknown, list_gpu_percentages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from detcloud.agent.node import Node

PERIOD_SECONDS = 10.0
BUSY_PERCENT_MIN = 5
"""The utilization from which a GPU counts as used. Displays and drivers stay below."""


class GpuActivity:
    """Notes the use of runs whose GPUs compute.

    nvidia-smi is called only while an active run has a GPU and an `idle_timeout`. If nvidia-smi
    fails, these runs count as used, so that no computation is ended by mistake.
    """

    def __init__(
        self,
        node: Node,
        log_line: Callable[[str], None],
        list_percentages: Callable[[], Mapping[str, int]] = list_gpu_percentages,
    ) -> None:
        """Create the object. `start` begins to look.

        Args:
            node: the node with the runs.
            log_line: writes to the agent's log.
            list_percentages: returns the utilization of each GPU by UUID. Raises SlotsUnknown.
        """
        self._node = node
        self._log_line = log_line
        self._list_percentages = list_percentages
        self._trouble = ""

    def start(self) -> None:
        """Look every PERIOD_SECONDS in a thread, which ends with the process."""
        threading.Thread(target=self._run, name="gpu-activity", daemon=True).start()

    def look(self) -> None:
        """Note the use of each run with an `idle_timeout` whose GPUs compute now."""
        watched = self._node.list_idle_watches()
        if not watched:
            return
        try:
            percentages = self._list_percentages()
        except SlotsUnknown as error:
            self._report(str(error))
            busy = set().union(*watched.values())
        else:
            self._trouble = ""
            busy = {gpu for gpu, percent in percentages.items() if percent >= BUSY_PERCENT_MIN}
        for allocation, gpus in watched.items():
            if gpus & busy:
                self._node.note_use(allocation)

    def _run(self) -> None:
        while True:
            time.sleep(PERIOD_SECONDS)
            self.look()

    def _report(self, trouble: str) -> None:
        """Write a failure of nvidia-smi to the log, unless the last call failed alike."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._log_line(f"the use of GPUs is unknown, so that no run counts as idle: {trouble}")
