"""The nodes and processes of this trial, as its agent's variables tell them to a launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

CHANNEL_PORT_VARIABLE = "DETCLOUD_CHANNEL_PORT"
# The port of the processes' own channel lies as far below the one for torch, which is the trial's.
CHANNEL_PORT_OFFSET = 8192


@dataclass(frozen=True, slots=True)
class Gang:
    """The nodes of a trial: this one is `node_rank` of them and has `slots` slots.

    `port` is free on the first of `hosts`; None off a cluster.
    """

    nodes: int
    node_rank: int
    hosts: tuple[str, ...]
    slots: int
    port: int | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Gang:
        """The gang that the agent's variables describe: one node and one slot off a cluster."""
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
        """The address of the first node; alone a node needs no network."""
        return self.hosts[0] if self.nodes > 1 else "127.0.0.1"

    @property
    def own_host(self) -> str:
        """The address at which the other nodes reach this one; alone a node needs no network."""
        known = self.nodes > 1 and self.node_rank < len(self.hosts)
        return self.hosts[self.node_rank] if known else "127.0.0.1"
