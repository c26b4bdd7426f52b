"""The same for each pool: what fails for one of them is done for the others."""

import logging
from collections.abc import Callable, Iterable

from control_plane.state.table import TableError

log = logging.getLogger(__name__)


class PoolsFailed(Exception):
    """These pools failed, each of which was logged; the others had their turn."""


def for_each(pools: Iterable[str], act: Callable[[str], object]) -> None:
    """Does it for all of the pools. Raises PoolsFailed once all had their turn."""
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
