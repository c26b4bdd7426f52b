"""The provisioner of an embedded cluster: a thread of its own, so that a slow cloud holds up
neither leases nor mail.
"""

import logging
import threading
from collections.abc import Callable
from itertools import takewhile

from control_plane.state.table import TableError
from lambdas.pools import PoolsFailed, for_each
from provisioner.reconcile import Reconciler
from provisioner.settings import SettingsInvalid
from provisioner.sweep import SWEEP_MS, Sweep

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LOOKS_PER_SWEEP = int(SWEEP_MS / 1000 / LOOK_SECONDS)


def provision(reconciler: Reconciler, stopped: Callable[[], bool] = lambda: False) -> int:
    """One pass over each pool that has, or may get, instances, until `stopped`. Returns in how many
    ms it is too early for none of them, 0 if it was for none. Raises PoolsFailed once all had their
    turn; settings that cannot be used are only logged.
    """
    waits_ms = [0]

    def reconcile(pool: str) -> None:
        try:
            looked = reconciler.reconcile(pool)
        except SettingsInvalid as error:
            log.warning("pool %s cannot be provisioned: %s", pool, error)
            return
        waits_ms.append(looked.again_ms)
        for reason in looked.reasons:
            log.info("pool %s: %s", pool, reason)

    for_each(takewhile(lambda _: not stopped(), reconciler.pools()), reconcile)
    return max(waits_ms)


def sweep_up(sweep: Sweep) -> int:
    """Ends instances that are nobody's; returns how many there were."""
    ended = list(sweep.sweep())
    for name in ended:
        log.warning("instance %s was nobody's and is ended", name)
    return len(ended)


class Provisioning:
    """Reconciles all pools once a second, which each pool limits itself, and sweeps each minute."""

    def __init__(self, reconciler: Reconciler, sweep: Sweep) -> None:
        self._reconciler = reconciler
        self._sweep = sweep
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="provisioning", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the pass under way."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=LOOK_SECONDS * 5)

    def _run(self) -> None:
        looks = 0
        while not self._stopped.wait(LOOK_SECONDS):
            looks += 1
            try:
                self._look(looks)
            except (TableError, PoolsFailed) as error:
                log.warning("not all was provisioned: %s", error)
            except Exception:
                log.exception("the provisioning failed")

    def _look(self, looks: int) -> None:
        provision(self._reconciler, self._stopped.is_set)
        if looks % LOOKS_PER_SWEEP == 0 and not self._stopped.is_set():
            sweep_up(self._sweep)
