"""The sides of a cluster in other clouds than its stack's, for pools whose instances are there.

A side is described by the stack's setting `otherClouds`, and made by whoever manages the other
cloud, with the commands that it prints. What it is made of is that cloud's: `infra/clouds.py`
names the module of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from control_plane.config.pools import ClusterConfig
from infra.findings import Finding
from infra.stack_program import Progress


@dataclass(frozen=True)
class Launcher:
    """The function that launches instances, as the other cloud hears of it: the `cloud` it runs in,
    the `account` there, and the name of its `role`.
    """

    cloud: str
    account: str
    team: str
    role: str


class OtherSide(Protocol):
    """A cluster's side in another cloud."""

    def variables(self) -> Mapping[str, Any]:
        """Return what the cluster's functions have to know of it, as JSON."""

    def commands(self, cluster: ClusterConfig) -> str:
        """Return the script that makes it, for the cloud's own command line. What is there already
        stays, and gets what is missing.
        """

    def find_pool_problems(self, cluster: ClusterConfig) -> list[str]:
        """Return what pools there say that cannot run in it, a line each."""

    def find_findings(self, cluster: ClusterConfig) -> list[Finding]:
        """Check whether it is there, with the credentials of whoever deploys."""

    def end_instances(self, progress: Progress) -> int:
        """End the cluster's instances there, whose launcher is stopped; return how many. Raises
        DrainFailed.
        """
