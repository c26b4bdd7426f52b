"""The clouds whose instances can run an agent: the registry of `--identity` and `--notices`.

A new cloud adds an entry here and a folder of the same name. The folder's module `instance` has the
functions of CloudInstance. The module is imported when an option names the cloud, so that idle
agents elsewhere stay small (docs/benchmarks.md, `cluster`: idle).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from detcloud.agent.agent import NoticeSource
    from detcloud.agent.identity_proof import IdentityProof


class AgentCloud(NamedTuple):
    """A cloud in the agent's options."""

    name: str
    """The cloud's folder in `detcloud.agent`, and the value of `--identity`."""
    notices: str
    """The value of `--notices`."""
    notices_place: str
    """The source of the cloud's notices, for the help text."""


class CloudInstance(Protocol):
    """The functions that the module `instance` in a cloud's folder must have."""

    def make_proof(self, cluster: str, token_sha256: str) -> IdentityProof:
        """Prove to a cluster that this instance generated the content with this digest.

        `cluster` is the result of `proven_cluster`: the cluster's id with the purpose of the proof.
        `token_sha256` is the digest of a join token or of a boot report. Raise OSError if the cloud
        does not provide the identity, for example because its metadata cannot be read.
        """

    def start_notices(self) -> NoticeSource:
        """Start to watch the cloud's notices about this instance, in threads. Return the source."""


CLOUDS: Final = (
    AgentCloud("aws", "ec2", "EC2's metadata"),
    AgentCloud("gcp", "gce", "Compute Engine's metadata"),
)


def load_instance(cloud: str) -> CloudInstance:
    """Import and return the functions of the cloud with this name in CLOUDS.

    Raise ImportError for an unknown name.
    """
    module: Any = import_module(f"detcloud.agent.{cloud}.instance")
    instance: CloudInstance = module
    return instance
