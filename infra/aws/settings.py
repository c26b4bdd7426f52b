"""The settings of a team's stack, checked without calling AWS.

Pulumi stores settings as texts; lists and maps are JSON.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final

from infra import machine_network, telemetry_setting
from infra.alarm_texts import RUNBOOK_URL, RUNBOOK_URL_EXPECTED
from infra.aws import company_settings as company
from infra.aws import copy_settings, mail_settings, trial_settings
from infra.aws.names import Names
from infra.copy_settings import Copies
from infra.data_buckets import DataBucket
from infra.remote_accounts import Launcher, RemoteAccount
from infra.remote_settings import find_remote_problems, open_remote_accounts, parse_other_clouds
from infra.stack_program import SettingsInvalid
from infra.telemetry_setting import Collector

ARCHITECTURES: Final = ("arm64", "x86_64")
# The periods in days that CloudWatch accepts, up to two years.
LOG_DAYS: Final = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731)
ZONES_MAX: Final = 6
_TEAM: Final = re.compile(r"(?=.{1,20}\Z)[a-z](?:-?[a-z0-9])*")
# Regions outside the partition `aws`.
_OTHER_PARTITION: Final = re.compile(r"cn-|us-gov-|[a-z]{2}-iso[a-z]*-|eusc-")
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class Network:
    """An existing network for instances."""

    subnets: Mapping[str, str]
    """The id of a subnet for each zone."""
    security_group: str
    """The id of the security group."""
    setting: str = "detcloud:network"
    """The setting that names the network, for messages."""


@dataclass(frozen=True)
class Settings:
    """The settings of a team's stack."""

    team: str
    """The team's name, which is part of all names."""
    account: str
    """The account's id; a deployment refuses credentials of other accounts."""
    region: str
    """The region of the stack."""
    cluster_config: str
    """The path of the cluster configuration, which contains the resource pools."""
    admin_sha256: str
    """The SHA-256 of the first administrator's token."""
    zones: tuple[str, ...] = ()
    """The zones in which the stack creates subnets; `parse_settings` defaults to a and b."""
    network: Network | None = None
    """Existing subnets and security group; None if the stack creates its own network."""
    archive: str = ""
    """The path of the functions' archive; if empty, that of `python -m infra.aws.bundle`."""
    suggest_archive: str = ""
    """The path of the archive of the function `suggest`; if empty, the bundle's."""
    architecture: str = "arm64"
    """The functions' processor, one of ARCHITECTURES."""
    protect: bool = True
    """Whether AWS refuses to delete the table, and buckets that are not empty."""
    deleted_checkpoint_days: int = 7
    """The days for which the bucket of checkpoints keeps deleted and replaced files; 0 for none."""
    purge_checkpoints: bool = True
    """Whether files that the cluster's collector deletes are deleted for good at once."""
    log_days: int = 14
    """The days for which logs are kept."""
    tracing: bool = False
    """Whether the functions are traced by X-Ray."""
    requests_per_second: int = 50
    """The gateway refuses more requests, and refused clients wait before a retry."""
    requests_at_once: int = 100
    """The largest burst of requests that the gateway accepts."""
    syncs_per_second: int = 200
    """The separate limit for agents' syncs, which users' requests therefore cannot displace."""
    syncs_at_once: int = 400
    """The largest burst of syncs that the gateway accepts."""
    api_concurrency: int = -1
    """The concurrent runs reserved for the API; -1 reserves none and sets no limit."""
    tick_concurrency: int = 2
    """The concurrent runs reserved for the tick, and as many again for `wake`.

    -1 reserves none and sets no limit.
    """
    alarm_email: str = ""
    """The address that receives the alarms; nobody if empty."""
    runbook_url: str = ""
    """The URL of the team's copy of docs/runbook, for links in alarms.

    If empty, alarms link to the cluster's page, or name the command that prints the page.
    """
    dashboard: bool = False
    """Whether the stack has a CloudWatch dashboard."""
    mail_sender: str = ""
    """The address from which webhooks send mails through SES; no mails through SES if empty."""
    mail_identity: str = ""
    """The verified identity of SES for `mail_sender`; if empty, the domain of the address."""
    telemetry: Collector | None = None
    """The OpenTelemetry collector of traces and metrics; None exports nothing."""
    monthly_budget: int = 0
    """The budget in dollars for the team's tagged resources; 0 for no budget."""
    kms_key: str = ""
    """The ARN of a customer-managed key for table, buckets, logs and disks; AWS's keys if empty."""
    permissions_boundary: str = ""
    """The ARN of the policy that is the permissions boundary of every role; none if empty."""
    iam_path: str = "/"
    """The IAM path of roles and of the instance profile."""
    iam_prefix: str = ""
    """The start of the names of roles and of the instance profile."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Additional tags of all resources and instances."""
    private_subnets: bool = False
    """Whether instances in the stack's own network have no public address."""
    endpoints: tuple[str, ...] = ()
    """The AWS services with an interface endpoint in the private subnets, such as `ecr.api`."""
    web_acl: str = ""
    """The ARN of the web ACL of a CloudFront distribution in front of the API.

    Without it, no distribution is created.
    """
    origin_secret: str = field(default="", repr=False)
    """The secret that the distribution sends to the API, which refuses requests without it."""
    session_manager: bool = False
    """Whether Systems Manager may open sessions on instances."""
    domain: str = ""
    """A custom host name of the API; none if empty."""
    certificate: str = ""
    """The ARN of the domain's certificate."""
    hosted_zone: str = ""
    """The Route 53 zone that gets the domain's record; if empty, the deployer creates it."""
    relay: bool | None = None
    """Whether the stack has a relay of tunnels, a task with a public address while it runs.

    None for a relay if instances have public addresses in the stack's own network.
    """
    data_buckets: tuple[DataBucket, ...] = ()
    """The buckets that the code of trials may use."""
    task_roles: Mapping[str, str] = field(default_factory=dict)
    """The ARN of the role of trials' code for each named pool, instead of `data_buckets`."""
    image_repositories: tuple[str, ...] = ()
    """The private ECR repositories from which images of trials are pulled."""
    machine_proxy: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The field `proxy` of each pool on AWS that names none; {} for none."""
    ca_certificates: str = ""
    """The field `ca_certificates` of each pool on AWS that names none."""
    copies: Copies | None = None
    """The copies of state and buckets in another region; None without copies."""
    other_clouds: Mapping[str, Any] = field(default_factory=dict)
    """The description of the remote account in each other cloud, by the cloud's name."""

    @property
    def purges_versions(self) -> bool:
        """Whether the bucket of checkpoints keeps versions that the collector deletes for good.

        In a replicated bucket, the rule for old versions deletes the versions instead. S3
        replicates a deletion, but not the deletion of a version: the copy would stay for ever.
        """
        is_replicated = self.copies is not None and self.copies.checkpoints
        return self.deleted_checkpoint_days > 0 and self.purge_checkpoints and not is_replicated

    @property
    def has_relay(self) -> bool:
        """Whether the stack has a relay of tunnels. A relay needs a subnet of the stack's own."""
        if self.relay is None:
            return self.network is None and not self.private_subnets
        return self.relay

    @property
    def names(self) -> Names:
        """The names of the stack's resources."""
        return Names(self.team, self.account, self.region, self.iam_path, self.iam_prefix)

    @property
    def remote_accounts(self) -> dict[str, RemoteAccount]:
        """The cluster's remote accounts in other clouds, by the cloud's name.

        Raises ValueError if a description is invalid, which `parse_settings` excludes.
        """
        return open_remote_accounts(self.other_clouds, launcher_of(self.names))


def launcher_of(names: Names) -> Launcher:
    """Return the description of the function `tick`, which launches instances in other clouds.

    Other clouds recognize the function by the name of its role.
    """
    return Launcher("aws", names.account, names.team, names.role("tick"))


def parse_settings(team: str, texts: Mapping[str, str]) -> Settings:
    """Return the settings of `team`; `texts` maps setting names in camel case to Pulumi's texts.

    Missing zones become the region's a and b.

    Raises:
        SettingsInvalid: the team's name or a setting is invalid, unknown or missing, or settings
            contradict each other. Contradictions are reported only if each setting is valid alone.
    """
    problems = [] if _TEAM.fullmatch(team) else [_problem("the team's name", team, _TEAM_EXPECTED)]
    values: dict[str, Any] = {"team": team}
    for name, text in texts.items():
        parse = _FIELDS.get(name)
        if parse is None:
            problems.append(f"detcloud:{name}: unknown setting; expected one of {_KNOWN}")
            continue
        try:
            values[_snake(name)] = parse(text)
        except ValueError as error:
            shown = "(a secret)" if name in _SECRETS else text
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
    """Return a line for each contradiction between individually valid settings; [] without any.

    `values` maps field names of Settings to parsed values.
    """
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
    found += copy_settings.find_inconsistencies(values)
    found += mail_settings.find_inconsistencies(values)
    return [*found, *company.find_inconsistencies(values)]


def _problem(place: str, value: object, expected: str) -> str:
    """Return the line `PLACE is VALUE: expected EXPECTED`; VALUE is JSON, cut to 80 characters."""
    shown = json.dumps(value)
    return f"{place} is {shown if len(shown) <= 80 else shown[:77] + '...'}: expected {expected}"


def _text_parser(pattern: str, expected: str) -> Callable[[str], str]:
    """Return a parser that returns matching texts and raises ValueError(expected) for others."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(expected)
        return text

    return parse


def parse_region(text: str) -> str:
    """Return `text` unchanged; raise ValueError unless it names a region of the partition `aws`."""
    # Every ARN in this code begins with `arn:aws:`, and identities are verified at amazonaws.com.
    if _OTHER_PARTITION.match(text):
        raise ValueError(
            "a region of the partition aws, such as us-east-1: China, GovCloud, isolated and "
            "sovereign regions belong to other partitions"
        )
    return _text_parser(r"[a-z]{2}-[a-z]+-[0-9]", "a region such as us-east-1")(text)


def _number_parser(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers within bounds, which raises ValueError for other texts."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return parse


def _parse_concurrency(text: str) -> int:
    """Return -1 or a number from 1 to 100. Raise ValueError for other texts."""
    return -1 if text == "-1" else _number_parser(1, 100)(text)


def _parse_api_concurrency(text: str) -> int:
    """Return -1 or a number from 5 to 1000. Raise ValueError for other texts."""
    return -1 if text == "-1" else _number_parser(5, 1_000)(text)


def _parse_bool(text: str) -> bool:
    """Return whether the text is `true`. Raise ValueError unless the text is `true` or `false`."""
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _parse_log_days(text: str) -> int:
    """Return a number of LOG_DAYS. Raise ValueError for other texts."""
    if text not in map(str, LOG_DAYS):
        raise ValueError(f"one of {', '.join(map(str, LOG_DAYS))}")
    return int(text)


def _parse_zones(text: str) -> tuple[str, ...]:
    """Return the zones of a JSON list, in the order of the list.

    Raise ValueError with a text of what was expected unless `text` is a JSON list of 1 to ZONES_MAX
    different texts. A zone that occurs twice is an error.
    """
    zones = _decode_json(text)
    is_list = isinstance(zones, list) and all(isinstance(zone, str) for zone in zones)
    if not is_list or not 0 < len(set(zones)) == len(zones) <= ZONES_MAX:
        raise ValueError(f"a list of 1 to {ZONES_MAX} different zones")
    return tuple(zones)


def _parse_network(text: str) -> Network:
    """Return the network that a JSON map describes: subnets by zone, and a security group.

    Raise ValueError with a text of what was expected for any other text, for a map without subnets,
    and for ids that are no ids of AWS. Whether the network exists is not checked.
    """
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
    """Return the decoded JSON, or None if the text is not valid JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _parse_email(text: str) -> str:
    """Return an e-mail address unchanged. Raise ValueError for other texts."""
    if not _EMAIL.fullmatch(text):
        raise ValueError("an e-mail address")
    return text


def _snake(name: str) -> str:
    """Convert a name in camel case to snake case."""
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _camel(name: str) -> str:
    """Convert a name in snake case to camel case."""
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
    "deletedCheckpointDays": _number_parser(0, 365),
    "purgeCheckpoints": _parse_bool,
    "logDays": _parse_log_days,
    "tracing": _parse_bool,
    "requestsPerSecond": _number_parser(1, 10_000),
    "requestsAtOnce": _number_parser(1, 5_000),
    "syncsPerSecond": _number_parser(1, 10_000),
    "syncsAtOnce": _number_parser(1, 5_000),
    "apiConcurrency": _parse_api_concurrency,
    "tickConcurrency": _parse_concurrency,
    "alarmEmail": _parse_email,
    "runbookUrl": _text_parser(RUNBOOK_URL, RUNBOOK_URL_EXPECTED),
    "dashboard": _parse_bool,
    "telemetry": telemetry_setting.decode_telemetry,
    "monthlyBudget": _number_parser(1, 10_000_000),
    "privateSubnets": _parse_bool,
    "machineProxy": machine_network.parse_machine_proxy,
    "relay": _parse_bool,
    "caCertificates": machine_network.parse_certificates,
    **company.PARSERS,
    **trial_settings.PARSERS,
    **copy_settings.PARSERS,
    **mail_settings.PARSERS,
    "otherClouds": lambda text: parse_other_clouds(text, "aws"),
}
_KNOWN: Final = ", ".join(_FIELDS)
_SECRETS: Final = company.SECRETS | machine_network.SECRETS | telemetry_setting.SECRETS
_REQUIRED: Final = tuple(
    _camel(item.name)
    for item in fields(Settings)
    if item.default is MISSING and item.default_factory is MISSING and item.name != "team"
)
