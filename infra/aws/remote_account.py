"""The remote account on AWS of a cluster whose functions run in another cloud."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, Final

import botocore.exceptions as sdk
from pydantic import AfterValidator, Field, StringConstraints

from control_plane.config.pools import ClusterConfig
from infra.aws.account_facts import Clients
from infra.aws.account_reader import aws_clients
from infra.aws.instance_ends import end_own_parts, list_instances
from infra.aws.names import Names
from infra.aws.pool_checks import aws_pools, find_place_problems
from infra.aws.remote_leftovers import find_remote_leftovers
from infra.aws.remote_pools import find_pool_findings
from infra.aws.settings import Network, Settings, parse_region
from infra.aws.trust_checks import find_remote_findings
from infra.aws.trust_script import RemoteRoles, render_removal, render_script
from infra.findings import Finding, Level
from infra.remote_accounts import Launcher, RemoteSettings, parse_remote_settings
from infra.stack_program import DrainFailed, DrainReport, Progress

SUBNETS_MAX: Final = 6
EXPECTED: Final = (
    '{"account": "12 DIGITS", "region": REGION, "subnets": {ZONE: "subnet-..."}, "securityGroup": '
    f'"sg-..."}} of an account of AWS, with at most {SUBNETS_MAX} subnets of one network'
)


class AwsRemoteSettings(RemoteSettings):
    """The setting that describes a remote account on AWS."""

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


class AwsRemoteAccount:
    """A cluster's remote account on AWS. `clients` makes calls as the deployer."""

    def __init__(
        self, settings: AwsRemoteSettings, launcher: Launcher, clients: Clients | None = None
    ) -> None:
        self._network = Network(settings.subnets, settings.security_group, "detcloud:otherClouds")
        self._names = Names(launcher.team, settings.account, settings.region)
        self._launcher = launcher
        self._given_clients = clients

    @cached_property
    def _clients(self) -> Clients:
        return self._given_clients or aws_clients(self._names.region)

    def variables(self) -> Mapping[str, Any]:
        """Return what `lambdas.aws.other_pools` opens the remote account by."""
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

    @property
    def place(self) -> str:
        """The account that it is in."""
        return f"the account {self._names.account}"

    def commands(self, cluster: ClusterConfig) -> str:
        """Return the script of commands of AWS's command line that make the remote account."""
        return render_script(self._roles(cluster))

    def removal_commands(self) -> str:
        """Return the script of commands of AWS's command line that remove the remote account."""
        return render_removal(RemoteRoles(self._names, self._network, self._launcher))

    def find_pool_problems(self, cluster: ClusterConfig) -> list[str]:
        """Return what pools on AWS say that cannot run in the remote account."""
        return [
            f"pool {name}: {problem}"
            for name, provider in aws_pools(cluster)
            for problem in find_place_problems(self._settings, provider)
        ]

    def find_findings(self, cluster: ClusterConfig) -> list[Finding]:
        """Check that the remote account is set up, and that pools can run in it."""
        found = find_remote_findings(self._roles(cluster), self._clients)
        if found[0].level is Level.FINE:
            found += find_pool_findings(self._settings, cluster, self._clients)
        return found

    @property
    def _settings(self) -> Settings:
        """The settings that a stack there would have."""
        names = self._names
        return Settings(names.team, names.account, names.region, "", "", network=self._network)

    def drain(self, progress: Progress) -> DrainReport:
        """End the cluster's instances there and delete its launch templates. Raises DrainFailed."""
        with self._explain_refusals():
            return end_own_parts(self._names, self._clients, progress)

    def list_instances(self) -> list[str]:
        """Return the cluster's instances there that have not ended. Raises DrainFailed."""
        with self._explain_refusals():
            return [
                instance["InstanceId"] for instance in list_instances(self._names, self._clients)
            ]

    def find_leftovers(self) -> list[str]:
        """Return the cluster's remaining resources there, a line each."""
        return find_remote_leftovers(self._names, self._clients)

    @contextmanager
    def _explain_refusals(self) -> Iterator[None]:
        account = self._names.account
        try:
            caller = self._clients("sts").get_caller_identity()["Account"]
            if caller != account:
                raise DrainFailed(
                    f"instances in the account {account} may be left: the credentials are of the "
                    f"account {caller}; name a profile of {account} in AWS_PROFILE, and try again"
                )
            yield
        except (sdk.ClientError, sdk.BotoCoreError) as error:
            raise DrainFailed(
                f"instances in the account {account} may be left: AWS did not accept it: {error}; "
                "sign in there, and try again"
            ) from None

    def _roles(self, cluster: ClusterConfig) -> RemoteRoles:
        groups = {provider.log_group for _, provider in aws_pools(cluster)} - {""}
        return RemoteRoles(self._names, self._network, self._launcher, tuple(sorted(groups)))


def open_remote_account(value: object, launcher: Launcher) -> AwsRemoteAccount:
    """Return the remote account that a setting's value describes. Raises ValueError with what was
    expected.
    """
    return AwsRemoteAccount(parse_remote_settings(AwsRemoteSettings, value, EXPECTED), launcher)
