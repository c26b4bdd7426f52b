"""The invariants of an outage of the API alone: it costs nobody anything.

While the API answers nobody, and for a lease after it is back, no agent is taken for lost that is
only silent, and no machine is ended that works. An agent that was cut off and lost before, whose
work is done elsewhere since, has no such time.
"""

import json
from collections.abc import Callable, Sequence

from control_plane.actors.agent.actor import leases_partition
from control_plane.agents.leases import LEASE_MS, LOSS_DETECTION_SORT
from control_plane.fleet.records import InstanceRow, InstanceState
from control_plane.simulation.virtual_clock import VirtualClock
from control_plane.state.table import Put, Write
from lambdas.simulation.network import Network
from lambdas.simulation.state_checker import InvariantBroken

# A pass that has just probed the API may be interrupted by others, and hosts' clocks differ.
TOLERANCE_MS = 15_000
_LEASES = leases_partition("")


class OutageChecker:
    """Checks commits and terminations; each check raises InvariantBroken. `is_gone` tells whether a
    machine has really ended.
    """

    def __init__(self, network: Network, clock: VirtualClock, start_ms: int) -> None:
        self._network = network
        self._start_ms = start_ms
        self._clock = clock
        self._lost: set[str] = set()

    def check_commit(self, writes: Sequence[Write], is_gone: Callable[[str], bool]) -> None:
        """Check that no lease is judged that could not be renewed."""
        for put in (write for write in writes if isinstance(write, Put)):
            if not put.key.partition.startswith(_LEASES) or put.key.sort == LOSS_DETECTION_SORT:
                continue
            agent = put.key.sort
            if not json.loads(put.body)["lost"]:
                self._lost.discard(agent)
            elif agent not in self._lost:
                self._lost.add(agent)
                if self._is_excused() and not is_gone(agent):
                    raise InvariantBroken(f"agent {agent} is lost, and the API answers nobody")

    def check_termination(self, row: InstanceRow | None) -> None:
        """Check the end of a machine that works."""
        if row is None or row.notice_ms is not None or row.state is not InstanceState.TERMINATING:
            return
        if row.silent_ms is None or not self._is_excused():
            return
        if row.silent_ms - self._start_ms >= self._network.api_stopped_ms:
            raise InvariantBroken(f"{row} is ended while it works, and the API answers nobody")

    def _is_excused(self) -> bool:
        """Whether no agent could have reached the API."""
        network, now_ms = self._network, self._clock.now_ms
        if network.api_down_ms is not None:
            return now_ms - network.api_down_ms > TOLERANCE_MS
        return network.api_back_ms > 0 and now_ms - network.api_back_ms < LEASE_MS - TOLERANCE_MS
