"""The interface of a remote account: an account in another cloud than the cluster's.

Pools with instances in another cloud need a remote account. The stack's setting `otherClouds`, or
the file `--clouds` of a cluster on own machines, describes the account. An administrator of the
other cloud creates the account with the printed commands. Each cloud implements the interface in
its own module, which `infra/clouds.py` names.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from control_plane.config.pools import ClusterConfig
from infra.findings import Finding
from infra.stack_program import DrainReport, Progress


class RemoteSettings(BaseModel):
    """The description of a remote account in the settings, to which each cloud adds fields.

    Keys are in camel case. Unknown keys are refused.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


SERVER: Final = "local"
"""The cloud of a Launcher that is a server on own machines."""

Described = TypeVar("Described", bound=RemoteSettings)


def parse_remote_settings(model: type[Described], value: object, expected: str) -> Described:
    """Return the setting's value as an instance of `model`.

    Raise ValueError with the text `expected` if the value does not fit the model.
    """
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError:
        raise ValueError(expected) from None


@dataclass(frozen=True)
class Launcher:
    """The part of a cluster that launches instances in other clouds: a function, or a server."""

    cloud: str
    """The cloud in which the function runs, or SERVER."""
    account: str
    """The account or project in which the function runs, or the id of a cluster on own machines."""
    team: str
    """The team of the cluster."""
    role: str
    """The function's identity: the name of a role on AWS, the service account's email on Google.

    For a server on own machines, the principal that the other cloud trusts: the ARN of an IAM user
    or role, or `serviceAccount:EMAIL` or `user:EMAIL` on Google. "" if the server launches with its
    own permissions, so that no role for launches is needed.
    """
    cluster_id: str = ""
    """The id of a cluster on own machines. "" for a cluster with functions."""

    @property
    def is_server(self) -> bool:
        """Whether a server on own machines launches the instances, and not a function."""
        return self.cloud == SERVER

    @property
    def place(self) -> str:
        """The place of the cluster for comments of scripts, for example `in gcp`."""
        return "on own machines" if self.is_server else f"in {self.cloud}"

    @property
    def trust_command(self) -> str:
        """The command that prints the script for the remote account."""
        if self.is_server:
            return f"detcloud deploy trust {SERVER} --clouds FILE"
        return f"detcloud deploy trust {self.cloud} --team {self.team}"

    @property
    def remedy_for_instances(self) -> str:
        """The advice if instances remain in a remote account that is to be removed."""
        steps = (
            "take its pools there out of the cluster's configuration, {apply}, and wait until "
            "`detcloud resource-pool list` shows none of their instances"
        )
        if self.is_server:
            return steps.format(apply="run `detcloud cluster apply`")
        destroy = f"`detcloud deploy destroy {self.cloud} --team {self.team}` ends them"
        return f"{destroy}; without it, {steps.format(apply='deploy')}"


class RemoteAccount(Protocol):
    """A cluster's remote account in another cloud."""

    @property
    def place(self) -> str:
        """The account or project for messages, such as `the account 123456789012`."""

    def variables(self) -> Mapping[str, Any]:
        """Return the value, ready for JSON, from which the cluster's functions open the account."""

    def commands(self, cluster: ClusterConfig) -> str:
        """Return the shell script that sets the account up, with the cloud's own command line.

        A repeated run keeps and completes existing resources.
        """

    def removal_commands(self) -> str:
        """Return the shell script that removes everything that the script of `commands` created.

        The script refuses to run while instances of the cluster exist.
        """

    def find_pool_problems(self, cluster: ClusterConfig) -> list[str]:
        """Return a line for each problem of the pools in the account; [] without problems.

        No cloud is called.
        """

    def find_findings(self, cluster: ClusterConfig) -> list[Finding]:
        """Return findings about the set-up of the account, and about pools in the account.

        Call the cloud with the deployer's credentials. A failed read becomes a warning.
        """

    def drain(self, progress: Progress) -> DrainReport:
        """Terminate the cluster's instances in the account, and delete the launch templates.

        The cluster's tick must be stopped. Return the numbers of removed instances and templates.
        Raise DrainFailed if instances do not end or the cloud refuses.
        """

    def list_instances(self) -> list[str]:
        """Return the names of the cluster's instances in the account that have not ended.

        Raise DrainFailed if the account cannot be read.
        """

    def find_leftovers(self) -> list[str]:
        """Return a line for each remaining resource of the cluster in the account.

        Return [] if nothing remains, and one line that says so if the account cannot be read.
        """
