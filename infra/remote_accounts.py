"""The remote accounts of a cluster in other clouds than its stack's, for pools whose instances are
there.

A remote account is described by the stack's setting `otherClouds`, and made by an administrator of
the other cloud, with the commands that it prints. Each cloud has a module of its own for them:
`infra/clouds.py` names it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from control_plane.config.pools import ClusterConfig
from infra.findings import Finding
from infra.stack_program import DrainReport, Progress


class RemoteSettings(BaseModel):
    """The setting that describes a remote account; each cloud adds its own fields."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


Described = TypeVar("Described", bound=RemoteSettings)


def parse_remote_settings(model: type[Described], value: object, expected: str) -> Described:
    """Return a setting's value as a model of it. Raises ValueError with what was expected."""
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError:
        raise ValueError(expected) from None


@dataclass(frozen=True)
class Launcher:
    """The function that launches instances, as the other cloud hears of it: the `cloud` it runs in,
    the `account` there, and the name of its `role`.
    """

    cloud: str
    account: str
    team: str
    role: str


class RemoteAccount(Protocol):
    """A cluster's remote account in another cloud."""

    @property
    def place(self) -> str:
        """The account or project that it is in, as people name it."""

    def variables(self) -> Mapping[str, Any]:
        """Return what the cluster's functions have to know of it, as JSON."""

    def commands(self, cluster: ClusterConfig) -> str:
        """Return the script that sets it up, for the cloud's own command line.

        Existing resources are kept and completed.
        """

    def removal_commands(self) -> str:
        """Return the script that removes what the other one made, once no instance is left."""

    def find_pool_problems(self, cluster: ClusterConfig) -> list[str]:
        """Return what pools there say that cannot run in it, a line each."""

    def find_findings(self, cluster: ClusterConfig) -> list[Finding]:
        """Check that the remote account is set up, with the deployer's credentials."""

    def drain(self, progress: Progress) -> DrainReport:
        """End what the cluster made there by itself, and whose launcher is stopped: instances, and
        what they are launched by. Raises DrainFailed.
        """

    def list_instances(self) -> list[str]:
        """Return the cluster's instances there that have not ended. Raises DrainFailed where nobody
        can tell.
        """

    def find_leftovers(self) -> list[str]:
        """Return the cluster's remaining resources there, a line each, or that it is unknown."""
