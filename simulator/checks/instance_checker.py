"""The invariants of a cloud's instances: each has an owner, and no pool has too many."""

from collections.abc import Callable, Iterable

from control_plane.fleet.records import InstanceState
from control_plane.fleet.rows import read_instances, read_intents
from control_plane.state.table import StateTable
from provisioner.clouds.fake.provider import FakeCloud
from provisioner.clouds.provider import INTENT_TAG, POOL_TAG
from simulator.checks.state_checker import InvariantBroken

ORPHAN_MS_MAX = 300_000


class InstanceChecker:
    """A checker of the machines of a simulated cloud. Each check raises InvariantBroken.

    Args:
        rows: the state table without faults.
        now_ms: returns the virtual time in ms.

    Attributes:
        orphans: the number of times that a check found a machine newly without an owner.
        leaked: the number of machines without an owner for more than ORPHAN_MS_MAX.
    """

    def __init__(self, rows: StateTable, cloud: FakeCloud, now_ms: Callable[[], int]) -> None:
        self.orphans = 0
        self.leaked = 0
        self._rows = rows
        self._cloud = cloud
        self._now_ms = now_ms
        self._orphan_since_ms: dict[str, int] = {}

    def check_maximum(self, pool: str, instances_max: int) -> None:
        """Check that a pool's instances and open launches do not exceed the maximum.

        Instances with a notice and terminating instances do not count. Raises InvariantBroken.
        """
        rows = [
            row
            for row in read_instances(self._rows, pool)
            if row.state is not InstanceState.TERMINATING and row.notice_ms is None
        ]
        pending = sum(intent.count for intent in read_intents(self._rows, pool))
        if len(rows) + pending > instances_max:
            text = f"pool {pool} has {len(rows)} instances and {pending} are asked for"
            raise InvariantBroken(f"{text}; it may have {instances_max}")

    def check_owners(self, pools: Iterable[str]) -> None:
        """Check and count live machines that neither an instance row nor an open launch explains.

        Raises InvariantBroken if a machine has been without them for more than ORPHAN_MS_MAX.

        Args:
            pools: all pools that may own instances.
        """
        living = {machine.id: machine for machine in self._cloud.live_machines()}
        if not living and not self._orphan_since_ms:
            return
        known = {row.id for pool in pools for row in read_instances(self._rows, pool)}
        open_intents = {
            (pool, intent_row.id) for pool in pools for intent_row in read_intents(self._rows, pool)
        }
        for name in [name for name in self._orphan_since_ms if name not in living]:
            del self._orphan_since_ms[name]
        for name, machine in living.items():
            intent = (machine.tags[POOL_TAG], machine.tags[INTENT_TAG])
            if name in known or intent in open_intents:
                self._orphan_since_ms.pop(name, None)
                continue
            if name not in self._orphan_since_ms:
                self.orphans += 1
            since_ms = self._orphan_since_ms.setdefault(name, self._now_ms())
            if self._now_ms() - since_ms > ORPHAN_MS_MAX:
                self.leaked += 1
                raise InvariantBroken(f"instance {name} is nobody's: {machine}")
