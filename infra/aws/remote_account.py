"""The remote account on AWS of a cluster that runs in another cloud."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, Final

import botocore.exceptions as sdk
from pydantic import AfterValidator, Field, StringConstraints

from control_plane.config.pools import ClusterConfig
from control_plane.config.server_clouds import (
    AWS_ACCOUNT,
    SECURITY_GROUP,
    SUBNET,
    SUBNETS_MAX,
    ZONE,
)
from infra.aws.account_facts import Clients
from infra.aws.account_reader import aws_clients
from infra.aws.instance_ends import end_own_parts, list_instances
from infra.aws.names import Names
from infra.aws.pool_checks import (
    aws_pools,
    capacity_reservations,
    find_place_problems,
    journal_groups,
)
from infra.aws.remote_leftovers import find_remote_leftovers
from infra.aws.remote_pools import find_pool_findings
from infra.aws.settings import Network, Settings, parse_region
from infra.aws.trust_checks import find_remote_findings
from infra.aws.trust_script import RemoteRoles, render_removal, render_script
from infra.findings import Finding, Level
from infra.remote_accounts import Launcher, RemoteSettings, parse_remote_settings
from infra.stack_program import DrainFailed, DrainReport, Progress
from provisioner.clouds.aws.instance_names import describe_remote

EXPECTED: Final = (
    '{"account": "12 DIGITS", "region": REGION, "subnets": {ZONE: "subnet-..."}, "securityGroup": '
    f'"sg-..."}} of an account of AWS, with at most {SUBNETS_MAX} subnets of one network'
)


class AwsRemoteSettings(RemoteSettings):
    """The value of `otherClouds.aws`, which describes a remote account on AWS."""

    account: Annotated[str, StringConstraints(pattern=AWS_ACCOUNT)]
    """The account's id of 12 digits."""
    region: Annotated[str, AfterValidator(parse_region)]
    """The region of the instances."""
    subnets: Annotated[
        dict[
            Annotated[str, StringConstraints(pattern=ZONE)],
            Annotated[str, StringConstraints(pattern=SUBNET)],
        ],
        Field(min_length=1, max_length=SUBNETS_MAX),
    ]
    """The id of a subnet for each zone."""
    security_group: Annotated[str, StringConstraints(pattern=SECURITY_GROUP)]
    """The id of the instances' security group."""


class AwsRemoteAccount:
    """A cluster's remote account on AWS, a RemoteAccount.

    `clients` returns SDK clients with the deployer's credentials; by default, clients of the
    environment's credentials are created at the first call.
    """

    def __init__(
        self, settings: AwsRemoteSettings, launcher: Launcher, clients: Clients | None = None
    ) -> None:
        self._network = Network(settings.subnets, settings.security_group, "detcloud:otherClouds")
        self._names = Names(
            launcher.team, settings.account, settings.region, cluster_id=launcher.cluster_id
        )
        self._launcher = launcher
        self._given_clients = clients

    @cached_property
    def _clients(self) -> Clients:
        """The SDK clients, created at the first call unless given."""
        return self._given_clients or aws_clients(self._names.region)

    def variables(self) -> Mapping[str, Any]:
        """Return the value, ready for JSON, from which `lambdas.aws.other_pools` opens the account.

        The keys are `region`, `launcher` and `instance` (ARNs of roles) and `network` (`subnets` by
        zone, `security_group`, `instance_profile`). AWS is not called.
        """
        network = self._network
        return describe_remote(
            self._names, network.subnets, network.security_group, has_launcher=True
        )

    @property
    def place(self) -> str:
        """The words `the account` and the account's id, for messages."""
        return f"the account {self._names.account}"

    def commands(self, cluster: ClusterConfig) -> str:
        """Return a shell script with AWS's command line that creates or updates the remote account.

        Instances may write only to the log groups of the pools in `cluster`. AWS is not called.
        """
        return render_script(self._roles(cluster))

    def removal_commands(self) -> str:
        """Return a shell script with AWS's command line that removes the remote account.

        The script stops with an error while instances of the cluster exist.
        """
        return render_removal(RemoteRoles(self._names, self._network, self._launcher))

    def find_pool_problems(self, cluster: ClusterConfig) -> list[str]:
        """Return a line for each problem of AWS pools with this account; [] without problems.

        AWS is not called.
        """
        return [
            f"pool {name}: {problem}"
            for name, provider in aws_pools(cluster)
            for problem in find_place_problems(self._settings, provider)
        ]

    def find_findings(self, cluster: ClusterConfig) -> list[Finding]:
        """Return findings about the set-up of the remote account and about pools on AWS.

        AWS is called; a failed read becomes a warning. The pools are checked only if the
        credentials belong to the account.
        """
        found = find_remote_findings(self._roles(cluster), self._clients)
        if found[0].level is Level.FINE:
            found += find_pool_findings(self._settings, cluster, self._clients)
        return found

    @property
    def _settings(self) -> Settings:
        """The settings of an imaginary stack in this account, for checks of pools."""
        names = self._names
        return Settings(names.team, names.account, names.region, "", "", network=self._network)

    def drain(self, progress: Progress) -> DrainReport:
        """Terminate the cluster's instances and delete the launch templates in the account.

        The cluster's tick must be stopped. Raise DrainFailed if instances do not end, the
        credentials belong to another account, or AWS refuses.
        """
        with self._explain_refusals():
            return end_own_parts(self._names, self._clients, progress)

    def list_instances(self) -> list[str]:
        """Return the ids of the cluster's instances in the account that have not ended.

        Raise DrainFailed if the credentials belong to another account or AWS refuses.
        """
        with self._explain_refusals():
            return [
                instance["InstanceId"] for instance in list_instances(self._names, self._clients)
            ]

    def find_leftovers(self) -> list[str]:
        """Return a line for each remaining resource of the cluster in the account; [] if clean.

        If the account could not be read, return one line that says so.
        """
        return find_remote_leftovers(self._names, self._clients)

    @contextmanager
    def _explain_refusals(self) -> Iterator[None]:
        """Convert AWS's errors in the block to DrainFailed.

        Also raise DrainFailed, before the block runs, if the credentials belong to another account.
        """
        account = self._names.account
        try:
            caller = self._clients("sts").get_caller_identity()["Account"]
            if caller != account:
                raise DrainFailed(
                    f"instances in the account {account} may be left: the credentials belong to "
                    f"the account {caller}; name a profile of {account} in AWS_PROFILE, and try "
                    "again"
                )
            yield
        except (sdk.ClientError, sdk.BotoCoreError) as error:
            raise DrainFailed(
                f"instances in the account {account} may be left: AWS refused a request: {error}; "
                "sign in to that account, and try again"
            ) from None

    def _roles(self, cluster: ClusterConfig) -> RemoteRoles:
        """Return the roles of the account.

        The roles may use the log groups and reservations that AWS pools of `cluster` name.
        """
        return RemoteRoles(
            self._names,
            self._network,
            self._launcher,
            tuple(journal_groups(cluster)),
            tuple(capacity_reservations(cluster)),
        )


def open_remote_account(value: object, launcher: Launcher) -> AwsRemoteAccount:
    """Return the remote account that the value of `otherClouds.aws` describes, without a call.

    `launcher` is the cluster's function that launches instances. Raise ValueError with a text of
    what was expected if the value is invalid.
    """
    return AwsRemoteAccount(parse_remote_settings(AwsRemoteSettings, value, EXPECTED), launcher)
