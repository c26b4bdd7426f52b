"""The side on AWS of a cluster whose functions run in another cloud."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final

import botocore.exceptions as sdk
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)
from pydantic.alias_generators import to_camel

from control_plane.config.pools import ClusterConfig
from infra.aws.account_facts import Clients
from infra.aws.account_reader import aws_clients
from infra.aws.instance_ends import end_instances
from infra.aws.names import Names
from infra.aws.pool_checks import aws_pools, find_place_problems
from infra.aws.settings import Network, Settings, parse_region
from infra.aws.side_checks import find_side_findings
from infra.aws.side_script import SideRoles, render_script
from infra.findings import Finding
from infra.other_sides import Launcher
from infra.stack_program import DrainFailed, Progress

SUBNETS_MAX: Final = 6
EXPECTED: Final = (
    '{"account": "12 DIGITS", "region": REGION, "subnets": {ZONE: "subnet-..."}, "securityGroup": '
    f'"sg-..."}} of an account of AWS, with at most {SUBNETS_MAX} subnets of one network'
)


class SideSettings(BaseModel):
    """The setting that describes a side."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    account: Annotated[str, StringConstraints(pattern=r"^[0-9]{12}$")]
    region: Annotated[str, AfterValidator(parse_region)]
    subnets: Annotated[
        dict[
            Annotated[str, StringConstraints(pattern=r"^[a-z]{2}-[a-z]+-[0-9][a-z]$")],
            Annotated[str, StringConstraints(pattern="^subnet-[0-9a-f]+$")],
        ],
        Field(min_length=1, max_length=SUBNETS_MAX),
    ]
    security_group: Annotated[str, StringConstraints(pattern="^sg-[0-9a-f]+$")]


class AwsSide:
    """A cluster's side on AWS. `clients` make the calls of whoever deploys."""

    def __init__(
        self, settings: SideSettings, launcher: Launcher, clients: Clients | None = None
    ) -> None:
        self._network = Network(settings.subnets, settings.security_group)
        self._names = Names(launcher.team, settings.account, settings.region)
        self._launcher = launcher
        self._given_clients = clients

    @cached_property
    def _clients(self) -> Clients:
        return self._given_clients or aws_clients(self._names.region)

    def variables(self) -> Mapping[str, Any]:
        """Return what `lambdas.aws.other_pools` opens the side by."""
        names = self._names
        return {
            "region": names.region,
            "launcher": names.role_arn("launcher"),
            "instance": names.role_arn("instance"),
            "network": {
                "subnets": dict(self._network.subnets),
                "security_group": self._network.security_group,
                "instance_profile": names.instance_profile_arn,
            },
        }

    def commands(self, cluster: ClusterConfig) -> str:
        """Return the script of commands of AWS's command line that make the side."""
        return render_script(self._roles(cluster))

    def find_pool_problems(self, cluster: ClusterConfig) -> list[str]:
        """Return what pools on AWS say that cannot run in the side."""
        place = Settings(
            self._names.team, self._names.account, self._names.region, "", "", network=self._network
        )
        return [
            f"pool {name}: {problem}"
            for name, provider in aws_pools(cluster)
            for problem in find_place_problems(place, provider)
        ]

    def find_findings(self, cluster: ClusterConfig) -> list[Finding]:
        """Check whether the side is there."""
        return find_side_findings(self._roles(cluster), self._clients)

    def end_instances(self, progress: Progress) -> int:
        """End the cluster's instances there; return how many. Raises DrainFailed."""
        try:
            return end_instances(self._names, self._clients, progress)
        except (sdk.ClientError, sdk.BotoCoreError) as error:
            raise DrainFailed(
                f"instances in the account {self._names.account} may be left: AWS did not "
                "accept it: "
                f"{error}; sign in there, and try again"
            ) from None

    def _roles(self, cluster: ClusterConfig) -> SideRoles:
        groups = {provider.log_group for _, provider in aws_pools(cluster)} - {""}
        return SideRoles(self._names, self._network, self._launcher, tuple(sorted(groups)))


def open_side(value: object, launcher: Launcher) -> AwsSide:
    """Return the side that a setting's value describes. Raises ValueError with what was
    expected.
    """
    try:
        settings = SideSettings.model_validate_json(json.dumps(value))
    except ValidationError:
        raise ValueError(EXPECTED) from None
    return AwsSide(settings, launcher)
