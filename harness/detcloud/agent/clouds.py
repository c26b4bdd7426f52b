"""The clouds whose instances can run an agent: the registry of `--identity` and `--notices`.

A new cloud adds its entry here, and its folder of that name: the module `instance` there has the
functions of CloudInstance. It is imported when an option names the cloud, so that an idle agent
elsewhere stays small (docs/benchmarks.md, `cluster`: idle).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from detcloud.agent.agent import NoticeSource
    from detcloud.agent.join_token import IdentityProof


class AgentCloud(NamedTuple):
    """A cloud in the agent's options."""

    name: str
    """Its folder, and its value of `--identity`."""
    notices: str
    """Its value of `--notices`."""
    notices_place: str
    """Where its notices are read, as the help says it."""


class CloudInstance(Protocol):
    """The functions of an instance's cloud, those of the module `instance` in its folder."""

    def make_proof(self, cluster: str, token_sha256: str) -> IdentityProof:
        """Make this instance's proof to the cluster that it made a token with this digest.

        Raises OSError: the cloud does not tell this instance what it needs.
        """

    def start_notices(self) -> NoticeSource:
        """Start to listen to what the cloud announces of this instance."""


CLOUDS: Final = (
    AgentCloud("aws", "ec2", "EC2's metadata"),
    AgentCloud("gcp", "gce", "Compute Engine's metadata"),
)


def load_instance(cloud: str) -> CloudInstance:
    """Return the functions of a cloud by its name; they are imported now."""
    module: Any = import_module(f"detcloud.agent.{cloud}.instance")
    instance: CloudInstance = module
    return instance
