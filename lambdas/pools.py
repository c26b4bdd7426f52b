"""One action for each pool: where it fails for one of them it is done for the others."""

import logging
from collections.abc import Callable, Iterable

from control_plane.state.table import TableError

log = logging.getLogger(__name__)


class PoolsFailed(Exception):
    """The pools that failed, each of which was logged; the others had their turn."""


def for_each_pool(pools: Iterable[str], act: Callable[[str], object]) -> None:
    """Call `act` with each of the pools. Raises PoolsFailed once all had their turn."""
    failed = []
    for pool in pools:
        try:
            act(pool)
        except TableError as error:
            log.warning("pool %s has to wait: %s", pool, error)
            failed.append(pool)
        except Exception:
            log.exception("pool %s failed", pool)
            failed.append(pool)
    if failed:
        raise PoolsFailed(f"pools that failed: {', '.join(failed)}")
