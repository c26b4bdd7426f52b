"""The settings of a team's stack, each of them checked before anything is asked of AWS.

Settings come as Pulumi keeps them: texts, and JSON where there is more to a value than a text.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final

from infra.aws import company_settings as company
from infra.aws import trial_settings
from infra.aws.names import Names
from infra.data_buckets import DataBucket
from infra.remote_accounts import Launcher, RemoteAccount
from infra.remote_settings import find_remote_problems, open_remote_accounts, parse_other_clouds
from infra.stack_program import SettingsInvalid

ARCHITECTURES: Final = ("arm64", "x86_64")
# What CloudWatch takes as days.
LOG_DAYS: Final = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731)
ZONES_MAX: Final = 6
_TEAM: Final = re.compile(r"(?=.{1,20}\Z)[a-z](?:-?[a-z0-9])*")
# Regions of other partitions than `aws`.
_OTHER_PARTITION: Final = re.compile(r"cn-|us-gov-|[a-z]{2}-iso[a-z]*-|eusc-")
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class Network:
    """A network for instances: `subnets` by their zones, and the `setting` that names it."""

    subnets: Mapping[str, str]
    security_group: str
    setting: str = "detcloud:network"


@dataclass(frozen=True)
class Settings:
    """The settings of a team's stack."""

    team: str
    account: str
    """Another account's credentials are refused."""
    region: str
    cluster_config: str
    """The file of the cluster configuration, with the resource pools."""
    admin_sha256: str
    """The SHA-256 of the first administrator's token."""
    zones: tuple[str, ...] = ()
    """Where the stack makes subnets; the region's a and b unless it is said."""
    network: Network | None = None
    """Subnets that are there, instead of a network of the stack's own."""
    archive: str = ""
    """The functions' archive; what `python -m infra.aws.bundle` made, if empty."""
    suggest_archive: str = ""
    """The same of `suggest`, which has a package of its own."""
    architecture: str = "arm64"
    protect: bool = True
    """Whether the table and buckets with something in them refuse to be removed."""
    log_days: int = 14
    tracing: bool = False
    """Whether the functions are traced by X-Ray."""
    requests_per_second: int = 50
    """More are refused by the gateway, which waiting clients see as a reason to wait longer."""
    requests_at_once: int = 100
    syncs_per_second: int = 200
    """The same of agents' syncs, which users' requests thus cannot crowd out."""
    syncs_at_once: int = 400
    api_concurrency: int = -1
    """How many of the API are reserved; -1: it shares what the account has."""
    tick_concurrency: int = 2
    """Ticks at once; -1 where the account has no concurrency to reserve."""
    alarm_email: str = ""
    monthly_budget: int = 0
    """Dollars that the team's tagged resources may cost before a notification; 0: no budget."""
    kms_key: str = ""
    """The ARN of a key of one's own for table, buckets, logs and disks; AWS's own if empty."""
    permissions_boundary: str = ""
    """The ARN of the policy that bounds every role of the stack."""
    iam_path: str = "/"
    iam_prefix: str = ""
    """What the names of roles and of the instance profile begin with."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of everything, instances included, besides the cluster's own."""
    private_subnets: bool = False
    """Whether instances of the stack's own network have no public address."""
    endpoints: tuple[str, ...] = ()
    """Services that private subnets reach by endpoints of their own."""
    web_acl: str = ""
    """The ARN of the web ACL of a CloudFront distribution in front of the API; none if empty."""
    origin_secret: str = field(default="", repr=False)
    """What the distribution shows the API, which then takes calls of nobody else."""
    session_manager: bool = False
    """Whether Systems Manager may open sessions on instances."""
    domain: str = ""
    """The API's own host name."""
    certificate: str = ""
    """The ARN of the domain's certificate."""
    hosted_zone: str = ""
    """The zone of Route 53 that gets the domain's record; the deployer makes it if empty."""
    data_buckets: tuple[DataBucket, ...] = ()
    """Buckets that the code of trials may use."""
    task_roles: Mapping[str, str] = field(default_factory=dict)
    """By pool, the ARN of the role of its trials' code, in place of `data_buckets`."""
    image_repositories: tuple[str, ...] = ()
    """Private repositories of ECR that images of trials are pulled from."""
    other_clouds: Mapping[str, Any] = field(default_factory=dict)
    """What the cluster has for pools in other clouds, by their names."""

    @property
    def names(self) -> Names:
        return Names(self.team, self.account, self.region, self.iam_path, self.iam_prefix)

    @property
    def remote_accounts(self) -> dict[str, RemoteAccount]:
        """The remote accounts of the cluster in other clouds."""
        return open_remote_accounts(self.other_clouds, launcher_of(self.names))


def launcher_of(names: Names) -> Launcher:
    """Return the tick, which launches in other clouds too, by its role."""
    return Launcher("aws", names.account, names.team, names.role("tick"))


def parse_settings(team: str, texts: Mapping[str, str]) -> Settings:
    """Parse the settings of `team`, as Pulumi keeps them by their names in camel case.

    Raises:
        SettingsInvalid: with all that is wrong.
    """
    problems = [] if _TEAM.fullmatch(team) else [_problem("the team's name", team, _TEAM_EXPECTED)]
    values: dict[str, Any] = {"team": team}
    for name, text in texts.items():
        parse = _FIELDS.get(name)
        if parse is None:
            problems.append(f"detcloud:{name}: there is no such setting; there are {_KNOWN}")
            continue
        try:
            values[_snake(name)] = parse(text)
        except ValueError as error:
            shown = "(a secret)" if name in company.SECRETS else text
            problems.append(_problem(f"detcloud:{name}", shown, str(error)))
    missing = [name for name in _REQUIRED if name not in texts]
    problems += [f"detcloud:{name} is missing: `pulumi config set` sets it" for name in missing]
    if not problems:
        problems += _inconsistencies(values)
    if problems:
        raise SettingsInvalid(problems)
    region = values["region"]
    settings = Settings(**{"zones": (f"{region}a", f"{region}b"), **values})
    problems += trial_settings.find_inconsistencies(values, settings.names)
    problems += find_remote_problems(settings.other_clouds, launcher_of(settings.names))
    if problems:
        raise SettingsInvalid(problems)
    return settings


def _inconsistencies(values: Mapping[str, Any]) -> list[str]:
    """Return the problems of settings that are right by themselves and wrong together."""
    region, network = values["region"], values.get("network")
    found = []
    if network is not None and "zones" in values:
        found.append("detcloud:zones is for the stack's own network: remove it or network")
    for zone in (*values.get("zones", ()), *(network.subnets if network else ())):
        if not re.fullmatch(re.escape(region) + "[a-z]", zone):
            place = "network.subnets" if network else "zones"
            found.append(_problem(f"detcloud:{place}", zone, f"a zone of {region}, as {region}a"))
    if values.get("monthly_budget") and not values.get("alarm_email"):
        found.append("detcloud:alarmEmail is missing: a budget needs an address to notify")
    return [*found, *company.find_inconsistencies(values)]


def _problem(place: str, value: object, expected: str) -> str:
    shown = json.dumps(value)
    return f"{place} is {shown if len(shown) <= 80 else shown[:77] + '...'}: expected {expected}"


def _text_parser(pattern: str, expected: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(expected)
        return text

    return parse


def parse_region(text: str) -> str:
    """Parse the name of a region. Raises ValueError for anything else, and for other partitions."""
    # Every ARN begins with `arn:aws:`, and identities are proved at amazonaws.com.
    if _OTHER_PARTITION.match(text):
        raise ValueError(
            "a region of the partition aws, such as us-east-1: China, GovCloud, isolated and "
            "sovereign regions are of others"
        )
    return _text_parser(r"[a-z]{2}-[a-z]+-[0-9]", "a region such as us-east-1")(text)


def _number_parser(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return parse


def _parse_concurrency(text: str) -> int:
    return -1 if text == "-1" else _number_parser(1, 100)(text)


def _parse_api_concurrency(text: str) -> int:
    return -1 if text == "-1" else _number_parser(5, 1_000)(text)


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _parse_log_days(text: str) -> int:
    if text not in map(str, LOG_DAYS):
        raise ValueError(f"one of {', '.join(map(str, LOG_DAYS))}")
    return int(text)


def _parse_zones(text: str) -> tuple[str, ...]:
    zones = _decode_json(text)
    is_list = isinstance(zones, list) and all(isinstance(zone, str) for zone in zones)
    if not is_list or not 0 < len(set(zones)) == len(zones) <= ZONES_MAX:
        raise ValueError(f"a list of 1 to {ZONES_MAX} different zones")
    return tuple(zones)


def _parse_network(text: str) -> Network:
    expected = '{"subnets": {ZONE: "subnet-..."}, "securityGroup": "sg-..."}'
    found = _decode_json(text)
    if not isinstance(found, dict) or set(found) != {"subnets", "securityGroup"}:
        raise ValueError(expected)
    subnets, group = found["subnets"], found["securityGroup"]
    if not isinstance(subnets, dict) or not subnets:
        raise ValueError(expected)
    ids = [("subnet", subnet) for subnet in subnets.values()] + [("sg", group)]
    if not all(
        isinstance(item, str) and re.fullmatch(f"{kind}-[0-9a-f]+", item) for kind, item in ids
    ):
        raise ValueError(expected)
    return Network(subnets, group)


def _decode_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _parse_email(text: str) -> str:
    if not _EMAIL.fullmatch(text):
        raise ValueError("an e-mail address")
    return text


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_TEAM_EXPECTED: Final = (
    "1 to 20 lowercase letters, digits and single hyphens, starting with a letter and not ending "
    "with a hyphen"
)
_parse_path: Final = _text_parser(r"[^\x00-\x1f]+", "the path of a file")
_FIELDS: Final[dict[str, Callable[[str], object]]] = {
    "account": _text_parser(r"[0-9]{12}", "the 12 digits of an AWS account, in quotes"),
    "region": parse_region,
    "clusterConfig": _parse_path,
    "adminSha256": _text_parser("[0-9a-f]{64}", "64 hexadecimal digits, the SHA-256 of a token"),
    "zones": _parse_zones,
    "network": _parse_network,
    "archive": _parse_path,
    "suggestArchive": _parse_path,
    "architecture": _text_parser("|".join(ARCHITECTURES), " or ".join(ARCHITECTURES)),
    "protect": _parse_bool,
    "logDays": _parse_log_days,
    "tracing": _parse_bool,
    "requestsPerSecond": _number_parser(1, 10_000),
    "requestsAtOnce": _number_parser(1, 5_000),
    "syncsPerSecond": _number_parser(1, 10_000),
    "syncsAtOnce": _number_parser(1, 5_000),
    "apiConcurrency": _parse_api_concurrency,
    "tickConcurrency": _parse_concurrency,
    "alarmEmail": _parse_email,
    "monthlyBudget": _number_parser(1, 10_000_000),
    "privateSubnets": _parse_bool,
    **company.PARSERS,
    **trial_settings.PARSERS,
    "otherClouds": lambda text: parse_other_clouds(text, "aws"),
}
_KNOWN: Final = ", ".join(_FIELDS)
_REQUIRED: Final = tuple(
    _camel(item.name)
    for item in fields(Settings)
    if item.default is MISSING and item.default_factory is MISSING and item.name != "team"
)
