"""The invariants of an outage of the API, which must not cost any work.

During an outage and for a lease afterwards, no silent agent may be marked as lost, and no machine
with work may be terminated. However, a machine may be terminated if its agent was already silent
before the outage.
"""

import json
from collections.abc import Callable, Sequence

from control_plane.actors.agent.actor import leases_partition
from control_plane.agents.leases import LEASE_MS, LOSS_DETECTION_SORT
from control_plane.fleet.records import InstanceRow, InstanceState
from control_plane.simulation.virtual_clock import VirtualClock
from control_plane.state.table import Put, Write
from simulator.checks.state_checker import InvariantBroken
from simulator.hosts.network import Network

# Other events may run between a pass's probe of the API and its commit, and clocks differ.
TOLERANCE_MS = 15_000
_LEASES = leases_partition("")


class OutageChecker:
    """A checker of commits and terminations during outages. Each check raises InvariantBroken.

    Args:
        start_ms: the epoch time at which the virtual clock was 0.
    """

    def __init__(self, network: Network, clock: VirtualClock, start_ms: int) -> None:
        self._network = network
        self._start_ms = start_ms
        self._clock = clock
        self._lost: set[str] = set()

    def check_commit(self, writes: Sequence[Write], is_gone: Callable[[str], bool]) -> None:
        """Check that a commit marks no agent as lost that could not reach the API.

        An agent whose machine has ended may be marked. Raises InvariantBroken.

        Args:
            writes: the writes of the commit.
            is_gone: returns whether the machine of an agent has ended.
        """
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
        """Check the termination of a machine with work.

        The machine may not be terminated for a silence that began since the start of the outage.
        Raises InvariantBroken.

        Args:
            row: the instance's row. None, a row with a notice and a row in another state than
                TERMINATING are not checked.
        """
        if row is None or row.notice_ms is not None or row.state is not InstanceState.TERMINATING:
            return
        if row.silent_ms is None or not self._is_excused():
            return
        if row.silent_ms - self._start_ms >= self._network.api_stopped_ms:
            raise InvariantBroken(f"{row} is ended while it works, and the API answers nobody")

    def _is_excused(self) -> bool:
        """Return whether the API is down, or has been back for less than a lease.

        In both cases, TOLERANCE_MS at the border of the outage are excluded.
        """
        network, now_ms = self._network, self._clock.now_ms
        if network.api_down_ms is not None:
            return now_ms - network.api_down_ms > TOLERANCE_MS
        return network.api_back_ms > 0 and now_ms - network.api_back_ms < LEASE_MS - TOLERANCE_MS
