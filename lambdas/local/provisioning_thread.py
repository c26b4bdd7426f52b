"""The provisioner of an embedded cluster: a thread of its own, so that a slow cloud holds up
neither leases nor mail.
"""

import logging
import threading

from control_plane.state.table import TableError
from lambdas.builder import Provisioner
from provisioner.orphan_cleanup import ORPHAN_CLEANUP_PERIOD_MS
from provisioner.pools import PoolsFailed

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
LOOKS_PER_CLEANUP = int(ORPHAN_CLEANUP_PERIOD_MS / 1000 / LOOK_SECONDS)


class ProvisioningThread:
    """Reconciles all pools once a second, which each pool limits itself, and cleans up orphans each
    minute.
    """

    def __init__(self, provisioner: Provisioner) -> None:
        self._provisioner = provisioner
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="provisioning", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the pass under way."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=LOOK_SECONDS * 5)

    def _run(self) -> None:
        looks = 0
        while not self._stopped.wait(LOOK_SECONDS):
            looks += 1
            try:
                self._provision(looks)
            except (TableError, PoolsFailed) as error:
                log.warning("provisioning was incomplete: %s", error)
            except Exception:
                log.exception("provisioning failed")

    def _provision(self, looks: int) -> None:
        self._provisioner.reconciler.reconcile_pools(self._stopped.is_set)
        if looks % LOOKS_PER_CLEANUP == 0 and not self._stopped.is_set():
            self._provisioner.orphan_cleaner.terminate_orphans()
