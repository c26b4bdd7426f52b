"""Endpoints of checkpoint stores that experiments name, and which of them the cluster may call.

The server lists, reads and deletes checkpoints from where it stands, which may be a network whose
other hosts users cannot reach. A cluster in a cloud therefore calls only endpoints of its
configuration, besides the cloud's own; one on a machine calls any that its user names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from control_plane.checkpoint_stores.registry import store_type
from control_plane.config.endpoints import endpoint_origin
from control_plane.findings import Finding, mask_url_credentials, value_text

if TYPE_CHECKING:
    from control_plane.config.storage import CheckpointStorage

EndpointRule = Callable[["CheckpointStorage"], Finding | None]
"""Says why the cluster may not call the store of these options; None if it may."""


def allow_any(options: CheckpointStorage) -> None:
    """Allow every store: the rule of a cluster on one machine."""
    return


def endpoint_rule(read_allowed: Callable[[], Iterable[str]]) -> EndpointRule:
    """The rule of a cluster that calls the endpoints alone that `read_allowed` reads."""

    def find_problem(options: CheckpointStorage) -> Finding | None:
        named = {} if options.type is None else store_type(options.type).endpoints(options)
        for option, urls in named.items():
            for url in urls.split(";"):
                if not is_allowed(url.strip()):
                    return refusal(option, url.strip())
        return None

    def is_allowed(url: str) -> bool:
        origin = endpoint_origin(url)
        return origin is not None and origin in set(map(endpoint_origin, read_allowed()))

    def refusal(option: str, url: str) -> Finding:
        return Finding(
            (option,),
            f"{value_text(mask_url_credentials(url))} is not a store that this cluster may call",
            "an admin can add it to checkpoint_endpoints of the cluster configuration",
        )

    return find_problem
