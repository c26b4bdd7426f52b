"""IAM permissions to manage the instances of a cluster. Pure.

The permissions depend on the cluster's tag. The function that launches instances can neither launch
an instance without this tag nor change an instance of another cluster.
"""

from collections.abc import Sequence

from infra.aws.names import Names
from infra.aws.policy_statements import Condition, Statement, make_statement
from infra.aws.settings import Network
from provisioner.clouds.provider import CLUSTER_TAG

LAUNCH_ACTIONS = ("ec2:CreateFleet", "ec2:RunInstances")
_SPOT_ROLES = {"spot": "AWSServiceRoleForEC2Spot", "ec2fleet": "AWSServiceRoleForEC2Fleet"}


def instance_management(
    names: Names, network: Network | None, reservations: Sequence[str] = ()
) -> list[Statement]:
    """Return the statements for launching, watching and terminating the cluster's instances.

    - Launch and terminate instances with the cluster's tag, in `network`, or if None in the stack's
      own network.
    - Launch instances into the capacity reservations `reservations`, and into no others. Each is
      the id of a reservation, or the ARN of a resource group of reservations.
    - Create, tag and delete the cluster's launch templates.
    - Read EC2's lists and prices, the consoles of the cluster's instances, and AWS's public
      parameters with the ids of images.
    - Pass the instances' role to EC2, and let AWS create its service-linked roles for spot
      instances and fleets.
    """
    requested = {"StringEquals": {f"aws:RequestTag/{CLUSTER_TAG}": names.tag}}
    owned = {"StringEquals": {f"ec2:ResourceTag/{CLUSTER_TAG}": names.tag}}
    launch = LAUNCH_ACTIONS
    created = _arns(names, "fleet/*", "instance/*", "volume/*")
    templates = _arns(names, "launch-template/*")
    creators = {"ec2:CreateAction": ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]}
    return [
        make_statement("Look", _DESCRIBE, ["*"]),
        make_statement("LaunchTagged", launch, created, requested),
        make_statement("LaunchFromOwnTemplates", launch, templates, owned),
        make_statement("LaunchWith", launch, _launch_resources(names)),
        _network_statement(names, network, launch, owned),
        *_reservation_statement(names, launch, reservations),
        make_statement("MakeTemplates", ["ec2:CreateLaunchTemplate"], templates, requested),
        make_statement(
            "TagWhatIsMade",
            ["ec2:CreateTags"],
            [*created, *templates],
            {"StringEquals": {**requested["StringEquals"], **creators}},
        ),
        make_statement(
            "End",
            ["ec2:DeleteLaunchTemplate", "ec2:TerminateInstances"],
            [*_arns(names, "instance/*"), *templates],
            owned,
        ),
        make_statement(
            # The console shows why an instance did not boot.
            "ReadConsoles",
            ["ec2:GetConsoleOutput"],
            _arns(names, "instance/*"),
            owned,
        ),
        make_statement(
            "GiveInstancesTheirRole",
            ["iam:PassRole"],
            [names.role_arn("instance")],
            {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
        ),
        make_statement(
            "FindImages",
            ["ssm:GetParameters"],
            [f"arn:aws:ssm:{names.region}::parameter/aws/service/*"],
        ),
        *_spot_roles(names),
    ]


def dry_launches(names: Names, network: Network | None) -> list[Statement]:
    """Return the statements that let the deployer ask EC2 whether the tick's launches are allowed.

    The statements are the tick's own about launches, for any capacity reservation. IAM does not
    distinguish requests with DryRun from launches.
    """
    reservations = [
        names.shared_ec2_arn("capacity-reservation/*"),
        f"arn:aws:resource-groups:{names.region}:{names.account}:group/*",
    ]
    return [
        *(item for item in instance_management(names, network) if item["Sid"] in _DRY_LAUNCHES),
        make_statement("LaunchReserved", LAUNCH_ACTIONS, reservations),
        make_statement("ExplainDenials", ["sts:DecodeAuthorizationMessage"], ["*"]),
    ]


# The statements about launches, and about launch templates and tags that launches make.
_DRY_LAUNCHES = frozenset(
    {
        "LaunchTagged",
        "LaunchFromOwnTemplates",
        "LaunchWith",
        "LaunchInOwnNetwork",
        "LaunchInGivenNetwork",
        "MakeTemplates",
        "TagWhatIsMade",
        "GiveInstancesTheirRole",
        "FindImages",
    }
)
# Actions that accept no resource in a policy.
_DESCRIBE = (
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "pricing:GetProducts",
)


def _launch_resources(names: Names) -> list[str]:
    """Return ARN patterns of resources that a launch refers to, like images and key pairs.

    Using these resources neither costs anything nor changes them.
    """
    public = [f"arn:aws:ec2:{names.region}::{kind}/*" for kind in ("image", "snapshot")]
    own = (
        "key-pair/*",
        "network-interface/*",
        "spot-instances-request/*",
        f"placement-group/{names.cluster}-gangs-*",
    )
    return [*public, *_arns(names, *own)]


def _reservation_statement(
    names: Names, launch: Sequence[str], reservations: Sequence[str]
) -> list[Statement]:
    """Return a list of the statement that allows `launch` into reservations; [] without any.

    EC2 chooses a reservation from a group. Therefore a group allows all reservations that are
    shared with the account. Instances get into a reservation only by its id or its group.
    """
    groups = [name for name in reservations if name.startswith("arn:")]
    ids = ["*"] if groups else [name for name in reservations if name not in groups]
    arns = [names.shared_ec2_arn(f"capacity-reservation/{name}") for name in ids]
    return [make_statement("LaunchReserved", launch, [*arns, *groups])] if arns else []


def _network_statement(
    names: Names, network: Network | None, launch: Sequence[str], owned: Condition
) -> Statement:
    """Return the statement that allows `launch` in subnets and security groups.

    If `network` is None, allow all subnets and groups that fulfil the condition `owned`. Otherwise
    allow only the subnets and the group of `network`.
    """
    if network is None:
        return make_statement(
            "LaunchInOwnNetwork", launch, _arns(names, "security-group/*", "subnet/*"), owned
        )
    return make_statement("LaunchInGivenNetwork", launch, _given_places(names, network))


def _given_places(names: Names, network: Network) -> list[str]:
    """Return the ARNs of the group and the subnets of `network`, which any account may own."""
    subnets = [f"subnet/{subnet}" for subnet in network.subnets.values()]
    places = [f"security-group/{network.security_group}", *subnets]
    return [names.shared_ec2_arn(place) for place in places]


def _spot_roles(names: Names) -> list[Statement]:
    """Return the statement that allows creating EC2's service roles for spot and fleets.

    The account's first spot instance and its first fleet create these roles.
    """
    arns = [service_role_arn(names, service) for service in _SPOT_ROLES]
    return [make_statement("StartWithSpot", ["iam:CreateServiceLinkedRole"], arns)]


def service_role_arn(names: Names, service: str) -> str:
    """Return the ARN of the account's service role for EC2; `service` is `spot` or `ec2fleet`.

    Raise KeyError for any other service.
    """
    path = f"aws-service-role/{service}.amazonaws.com/{_SPOT_ROLES[service]}"
    return f"arn:aws:iam::{names.account}:role/{path}"


def _arns(names: Names, *resources: str) -> list[str]:
    """Return the ARNs of EC2 resources of this account, such as `instance/*`."""
    return [names.ec2_arn(resource) for resource in resources]
