"""The thread of an embedded cluster's provisioner.

In a separate thread, slow launches do not delay leases and mail.
"""

import logging
from collections.abc import Callable

from control_plane.state.table import TableError
from lambdas.builder import Provisioner
from local_cluster.background_thread import BackgroundThread
from provisioner.orphan_cleanup import ORPHAN_CLEANUP_PERIOD_MS
from provisioner.pools import PoolsFailed

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
STOP_SECONDS_MAX = 5.0
LOOKS_PER_CLEANUP = int(ORPHAN_CLEANUP_PERIOD_MS / 1000 / LOOK_SECONDS)


class ProvisioningThread(BackgroundThread):
    """A thread that runs the provisioner every second and the orphan cleanup every minute.

    The provisioner launches and terminates instances by demand, and skips a pool whose last pass is
    too recent. Errors are logged, and the thread continues.
    """

    def __init__(
        self,
        provisioner: Provisioner,
        look_seconds: float = LOOK_SECONDS,
        looks_per_cleanup: int = LOOKS_PER_CLEANUP,
        is_on_duty: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create a thread. `look_seconds` and `looks_per_cleanup` replace a second and a minute.

        `is_on_duty` returns whether this server, of several servers, launches instances. Without
        the duty, the thread only terminates orphans on this machine.
        """
        super().__init__("provisioning", STOP_SECONDS_MAX)
        self._is_on_duty = is_on_duty
        self._provisioner = provisioner
        self._look_seconds = look_seconds
        self._looks_per_cleanup = looks_per_cleanup

    def _run(self) -> None:
        """Call `_provision` every `look_seconds` until the thread is stopped. Log each error."""
        looks = 0
        while not self._stopped.wait(self._look_seconds):
            looks += 1
            try:
                self._provision(looks)
            except (TableError, PoolsFailed) as error:
                log.warning("provisioning was incomplete: %s", error)
            except Exception:
                log.exception("provisioning failed")

    def _provision(self, looks: int) -> None:
        """Reconcile all pools on duty. At every `looks_per_cleanup`-th call, terminate orphans.

        Orphans are instances without a row or an open launch in the state table. A stop of the
        thread ends the call after the current pool. Raises TableError if the table cannot be read,
        and PoolsFailed after all pools if any pool failed. Orphans are not terminated then.

        Args:
            looks: the number of this call, from 1.
        """
        if self._is_on_duty():
            self._provisioner.reconciler.reconcile_pools(self._stopped.is_set)
        if looks % self._looks_per_cleanup == 0 and not self._stopped.is_set():
            self._provisioner.orphan_cleaner.terminate_orphans()
