"""The rules for the endpoints of checkpoint stores that the cluster may call.

The server lists, reads and deletes checkpoints from its own network, where users may be unable to
reach other hosts. Apart from the cloud's own stores, a cluster in a cloud therefore calls only the
endpoints in its configuration. A cluster on a single machine calls every endpoint that its user
names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from control_plane.checkpoint_stores.registry import store_type
from control_plane.config.endpoints import endpoint_origin
from control_plane.findings import Finding, value_text
from detcloud.shared.masking import mask_urls

if TYPE_CHECKING:
    from control_plane.config.storage import CheckpointStorage

EndpointRule = Callable[["CheckpointStorage"], Finding | None]
"""Returns the reason why the cluster must not call a store with these options. Returns None if the
cluster may call the store.
"""


def allow_any(options: CheckpointStorage) -> None:
    """Return None, which allows every store: the EndpointRule of a cluster on a single machine."""
    return


def endpoint_rule(read_allowed: Callable[[], Iterable[str]]) -> EndpointRule:
    """Return the rule of a cluster that calls only the endpoints that `read_allowed` returns.

    The rule compares scheme, host and port. It calls `read_allowed` for each URL in the options,
    and returns a Finding for the first URL that is not allowed or has no plain host. It returns
    None for options without a type or without a URL. The rule raises KeyError for an unknown type,
    and every error of `read_allowed`.
    """

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
            f"{value_text(mask_urls(url))} is not a store that this cluster may call",
            "an admin can add it to checkpoint_endpoints of the cluster configuration",
        )

    return find_problem
