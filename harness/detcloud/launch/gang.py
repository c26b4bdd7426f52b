"""The nodes and processes of this trial, according to the agent's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

CHANNEL_PORT_VARIABLE = "DETCLOUD_CHANNEL_PORT"
# The difference between the trial's port, which torch uses, and the lower port of the channels.
CHANNEL_PORT_OFFSET = 8192


@dataclass(frozen=True, slots=True)
class Gang:
    """The nodes of a trial."""

    nodes: int
    """The number of nodes."""
    node_rank: int
    """The number of this node, from 0."""
    hosts: tuple[str, ...]
    """The addresses of all nodes, by node rank."""
    slots: int
    """The number of slots of this node."""
    port: int | None
    """A free port of the first node for torch; None without a cluster."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Gang:
        """Return the nodes that the agent's variables describe. Without a cluster: one node and one
        slot.

        Raises ValueError if a variable of a number contains other text.
        """
        hosts = tuple(filter(None, environment.get("DETCLOUD_HOSTS", "").split(",")))
        return cls(
            nodes=int(environment.get("DETCLOUD_NODES") or 1),
            node_rank=int(environment.get("DETCLOUD_NODE_RANK") or 0),
            hosts=hosts or ("127.0.0.1",),
            slots=max(1, int(environment.get("DETCLOUD_SLOTS") or 1)),
            port=int(environment.get("DETCLOUD_RENDEZVOUS_PORT") or 0) or None,
        )

    @property
    def chief(self) -> str:
        """The address of the first node; the loopback address for a single node."""
        return self.hosts[0] if self.nodes > 1 else "127.0.0.1"

    @property
    def own_host(self) -> str:
        """The address at which the trial's other nodes reach this node.

        The loopback address for a single node, and for a node without an address in `hosts`.
        """
        known = self.nodes > 1 and self.node_rank < len(self.hosts)
        return self.hosts[self.node_rank] if known else "127.0.0.1"
