"""The settings of a team's stack, checked without calling Google.

Pulumi stores settings as texts; lists, maps, numbers and booleans are JSON.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from control_plane.config.server_clouds import GCP_REGION, PROJECT, REGIONS_MAX
from control_plane.gcp.machine_sections import DescribedTypes
from infra import machine_network, telemetry_setting
from infra.alarm_texts import RUNBOOK_URL, RUNBOOK_URL_EXPECTED
from infra.copy_settings import Copies, expected_copies, find_copy_problems, parse_copies
from infra.data_buckets import expected_buckets
from infra.gcp.names import Names
from infra.gcp.trial_access import (
    BUCKETS_MAX,
    REPOSITORIES_MAX,
    DataBuckets,
    Repositories,
    TaskAccounts,
    TrialAccess,
    find_access_problems,
)
from infra.machine_network import (
    EXPECTED_CERTIFICATES,
    EXPECTED_PROXY,
    check_machine_proxy,
    parse_certificates,
)
from infra.remote_accounts import Launcher, RemoteAccount
from infra.remote_settings import (
    describe_other_clouds,
    find_remote_problems,
    open_remote_accounts,
    parse_other_clouds,
)
from infra.stack_program import SettingsInvalid
from infra.telemetry_setting import Collector, parse_telemetry

_SECRETS: Final = machine_network.SECRETS | telemetry_setting.SECRETS
# Compute Engine and Cloud Run allow 64 labels; the cluster and a pool add labels, too.
LABELS_MAX: Final = 20
_TEAM: Final = re.compile(r"(?=.{1,20}\Z)[a-z](?:-?[a-z0-9])*")
_TEAM_EXPECTED: Final = (
    "1 to 20 lowercase letters, digits and single hyphens, starting with a letter and not ending "
    "with a hyphen"
)
_RESOURCE_NAME: Final = r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NETWORK: Final = rf"^(?:projects/[a-z0-9.:-]+/global/networks/)?{_RESOURCE_NAME}$"
_SUBNETWORK: Final = (
    rf"^(?:projects/[a-z0-9.:-]+/regions/[a-z0-9-]+/subnetworks/)?{_RESOURCE_NAME}$"
)
_KEY: Final = r"^projects/[a-z0-9.:-]+/locations/[a-z0-9-]+/keyRings/[\w-]+/cryptoKeys/[\w-]+$"
_IMAGE: Final = r"^[a-z0-9][a-z0-9./_-]+@sha256:[0-9a-f]{64}$"
_WHY_NO_KEY: Final = (
    "a key belongs to one region, and does not encrypt the objects of a bucket in another region"
)
_LABEL_KEY: Final = r"^[a-z][a-z0-9_-]{0,62}$"

ProjectId = Annotated[str, StringConstraints(pattern=PROJECT)]
ProjectNumber = Annotated[str, StringConstraints(pattern=r"^[0-9]{5,15}$")]
Region = Annotated[str, StringConstraints(pattern=GCP_REGION)]
Path = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]+$")]


def check_different(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return `values` unchanged. Raise ValueError if two values are equal."""
    if len(set(values)) != len(values):
        raise ValueError("different values")
    return values


def _check_clouds(given: dict[str, Any]) -> dict[str, Any]:
    """Return the setting `otherClouds` unchanged. Raise ValueError for an unknown cloud."""
    return parse_other_clouds(json.dumps(given), "gcp")


def _check_copies(given: object) -> Copies:
    """Return the copies that a map describes. Raise ValueError for any other value."""
    return parse_copies(given, re.compile(GCP_REGION))


def _check_keys(labels: dict[str, str]) -> dict[str, str]:
    """Return `labels` unchanged. Raise ValueError for a key that the cluster itself may use."""
    if any(key.startswith("detcloud-") for key in labels):
        raise ValueError("keys that do not begin with detcloud-")
    return labels


class Network(BaseModel):
    """An existing network for instances."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: Annotated[str, StringConstraints(pattern=_NETWORK)]
    """The name or path of the network."""
    subnetworks: Annotated[
        dict[Region, Annotated[str, StringConstraints(pattern=_SUBNETWORK)]],
        Field(min_length=1, max_length=REGIONS_MAX),
    ]
    """The name or path of a subnetwork for each region."""
    tags: tuple[Annotated[str, StringConstraints(pattern=f"^{_RESOURCE_NAME}$")], ...] = ()
    """The tags of instances that the network's firewall rules refer to."""


class Settings(BaseModel):
    """The settings of a team's stack.

    A field's `description` is the text of what was expected, for messages about invalid values.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    team: str
    """The team's name, which is part of all names."""
    project: ProjectId = Field(
        description="the id of a project: 6 to 30 lowercase letters, digits and hyphens"
    )
    """The project's id. Every resource names the project, so credentials cannot select another."""
    project_number: ProjectNumber = Field(
        description="the project's number, which `gcloud projects describe PROJECT` shows"
    )
    """The project's number, a part of functions' URLs and buckets' names."""
    region: Region = Field(description="a region such as us-central1")
    """The region of functions, state and buckets."""
    cluster_config: Path = Field(description="the path of a file")
    """The path of the cluster configuration, which contains the resource pools."""
    admin_sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] = Field(
        alias="adminSha256", description="64 hexadecimal digits, the SHA-256 of a token"
    )
    """The SHA-256 of the first administrator's token."""
    regions: Annotated[
        tuple[Region, ...],
        Field(min_length=1, max_length=REGIONS_MAX),
        AfterValidator(check_different),
    ] = Field(default=(), description=f"a list of 1 to {REGIONS_MAX} different regions")
    """The regions in which the stack creates subnetworks; if empty, only `region`."""
    network: Network | None = Field(
        default=None,
        description='{"network": NAME, "subnetworks": {REGION: NAME}, "tags": [TAG]}',
    )
    """An existing network. Without this setting, the stack creates a network."""
    archive: Path | None = Field(default=None, description="the path of a file")
    """The path of the archive for the functions' image.

    Defaults to the archive of `python -m infra.gcp.bundle`.
    """
    suggest_archive: Path | None = Field(default=None, description="the path of a file")
    """The path of the archive for the image of the function `suggest`, with a similar default."""
    image: Annotated[str, StringConstraints(pattern=_IMAGE)] = Field(
        default="", description="an image by its digest, HOST/PATH@sha256:..."
    )
    """An existing image of the functions; if empty, the deployment builds the image."""
    suggest_image: Annotated[str, StringConstraints(pattern=_IMAGE)] = Field(
        default="", description="an image by its digest, HOST/PATH@sha256:..."
    )
    """An existing image of the function `suggest`; set together with `image`."""
    protect: StrictBool = Field(default=True, description="true or false")
    """Whether Google refuses to delete the database, and buckets that are not empty."""
    deleted_checkpoint_days: Annotated[StrictInt, Field(ge=0, le=365)] = Field(
        default=7, description="a whole number from 0 to 365"
    )
    """The days for which the bucket of checkpoints keeps deleted and replaced files; 0 for none."""
    purge_checkpoints: StrictBool = Field(default=True, description="true or false")
    """Whether files that the cluster's collector deletes are deleted for good at once."""
    copies: Annotated[Copies | None, BeforeValidator(_check_copies)] = Field(
        default=None, description=expected_copies("europe-west4")
    )
    """The copies of state and buckets in another region; None without copies."""
    api_instances: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        default=20, description="a whole number from 1 to 1000"
    )
    """The maximum number of the API's instances."""
    api_concurrency: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        default=40, description="a whole number from 1 to 1000"
    )
    """The maximum number of concurrent requests of an instance of the API."""
    alarm_email: Annotated[str, StringConstraints(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")] = Field(
        default="", description="an e-mail address"
    )
    """The address that receives the alarms; nobody if empty."""
    runbook_url: Annotated[str, StringConstraints(pattern=f"^{RUNBOOK_URL}$")] = Field(
        default="", description=RUNBOOK_URL_EXPECTED
    )
    """The URL of the team's copy of docs/runbook, for links in alarms.

    If empty, alarms link to the cluster's page, or name the command that prints the page.
    """
    dashboard: StrictBool = Field(default=False, description="true or false")
    """Whether the stack has a dashboard in Cloud Monitoring."""
    telemetry: Annotated[Collector | None, BeforeValidator(parse_telemetry)] = Field(
        default=None, repr=False, description=telemetry_setting.EXPECTED
    )
    """The OpenTelemetry collector of traces and metrics; None exports nothing."""
    monthly_budget: Annotated[StrictInt, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="a whole number from 1 to 10000000"
    )
    """The budget for resources with the cluster's label; None for no budget.

    The unit is the currency of the billing account.
    """
    billing_account: Annotated[
        str, StringConstraints(pattern="^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$")
    ] = Field(default="", description="the id of a billing account, such as 01AB23-45CD67-89EF01")
    """The billing account of the budget; set together with `monthly_budget`."""
    kms_key: Annotated[
        str,
        StringConstraints(pattern=_KEY),
    ] = Field(
        default="",
        description="a key, projects/PROJECT/locations/REGION/keyRings/RING/cryptoKeys/KEY",
    )
    """The customer-managed key for database, buckets, images, functions and disks.

    Google's own keys if empty.
    """
    labels: Annotated[
        dict[
            Annotated[str, StringConstraints(pattern=_LABEL_KEY)],
            Annotated[str, StringConstraints(pattern="^[a-z0-9_-]{0,63}$")],
        ],
        Field(max_length=LABELS_MAX),
        AfterValidator(_check_keys),
    ] = Field(
        default={},
        description=(
            f"a map of at most {LABELS_MAX} labels: lowercase letters, digits, _ and -, and keys "
            "that begin with a letter and not with detcloud-"
        ),
    )
    """Additional labels of all resources and instances."""
    private_subnets: StrictBool = Field(default=False, description="true or false")
    """Whether instances in the stack's own network have no public address, and use Cloud NAT."""
    machine_types: DescribedTypes = Field(
        default={},
        description='a map of {"vcpus": N, "memory_gb": N, "gpus": N, "accelerator": NAME}',
    )
    """Descriptions of the pools' machine types, by name; if unset, a deployment asks Google."""
    machine_proxy: Annotated[dict[str, Any], AfterValidator(check_machine_proxy)] = Field(
        default={}, repr=False, description=EXPECTED_PROXY
    )
    """The field `proxy` of each pool on Google Cloud that names none; {} for none."""
    ca_certificates: Annotated[str, AfterValidator(parse_certificates)] = Field(
        default="", description=EXPECTED_CERTIFICATES
    )
    """The field `ca_certificates` of each pool on Google Cloud that names none."""
    other_clouds: Annotated[dict[str, Any], AfterValidator(_check_clouds)] = Field(
        default={}, description=describe_other_clouds("gcp")
    )
    """The description of the remote account in each other cloud, by the cloud's name."""

    relay: StrictBool = Field(default=True, description="true or false")
    """Whether the stack has a relay of tunnels."""
    data_buckets: DataBuckets = Field(default=(), description=expected_buckets(BUCKETS_MAX))
    """The buckets and folders of buckets that the code of trials may read, or read and write."""
    task_accounts: TaskAccounts = Field(
        default={}, description='a map like {"POOL": "NAME@PROJECT.iam.gserviceaccount.com"}'
    )
    """The service account of trials' code for each named pool, instead of `data_buckets`."""
    image_repositories: Repositories = Field(
        default=(),
        description=(
            f"a list of at most {REPOSITORIES_MAX} like LOCATION-docker.pkg.dev/PROJECT/REPOSITORY"
        ),
    )
    """The private Artifact Registry repositories with images of trials."""

    @property
    def purges_versions(self) -> bool:
        """Whether the bucket of checkpoints keeps versions that the collector deletes for good."""
        return self.deleted_checkpoint_days > 0 and self.purge_checkpoints

    @property
    def trial_access(self) -> TrialAccess:
        """The access of trials to resources outside the cluster."""
        pools = tuple(self.task_accounts.items())
        return TrialAccess(self.data_buckets, pools, self.image_repositories)

    @property
    def names(self) -> Names:
        """The names of the stack's resources."""
        return Names(self.team, self.project, self.project_number, self.region)

    @property
    def remote_accounts(self) -> dict[str, RemoteAccount]:
        """The cluster's remote accounts in other clouds, by the cloud's name.

        Raises ValueError if a description is invalid, which `parse_settings` excludes.
        """
        return open_remote_accounts(self.other_clouds, launcher_of(self.names))

    @property
    def gives_addresses(self) -> bool:
        """Whether instances in the stack's own network get a public address."""
        return not (self.network or self.private_subnets)

    @property
    def host_subnetworks(self) -> tuple[str, ...]:
        """The paths of subnetworks of `network` in other projects (hosts of a shared VPC)."""
        given = self.network.subnetworks.values() if self.network else ()
        return tuple(
            path for path in given if subnetwork_project(path, self.project) != self.project
        )

    @property
    def subnetwork_regions(self) -> tuple[str, ...]:
        """The regions with subnetworks for instances."""
        return tuple(self.network.subnetworks) if self.network else self.regions or (self.region,)


def launcher_of(names: Names) -> Launcher:
    """Return the description of the function `tick`, which launches instances in other clouds.

    Other clouds recognize the function by the e-mail address of its service account.
    """
    return Launcher("gcp", names.project, names.team, names.email("tick"))


def subnetwork_project(path: str, project: str) -> str:
    """Return the project in the path of a subnetwork, or `project` for a plain name."""
    return path.split("/")[1] if path.startswith("projects/") else project


def parse_settings(team: str, texts: Mapping[str, str]) -> Settings:
    """Return the settings of `team`; `texts` maps setting names in camel case to Pulumi's texts.

    Raises:
        SettingsInvalid: the team's name or a setting is invalid, unknown or missing, or settings
            contradict each other. Contradictions are reported only if each setting is valid alone.
    """
    problems = [] if _TEAM.fullmatch(team) else [_problem("the team's name", team, _TEAM_EXPECTED)]
    unknown = sorted(set(texts) - set(_FIELDS))
    known = ", ".join(_FIELDS)
    problems += [f"detcloud:{name}: unknown setting; expected one of {known}" for name in unknown]
    given = {name: _decode(name, text) for name, text in texts.items() if name in _FIELDS}
    try:
        settings = Settings.model_validate({**given, "team": team})
    except ValidationError as error:
        found = dict.fromkeys(
            _describe(error_details, texts) for error_details in error.errors(include_url=False)
        )
        raise SettingsInvalid([*problems, *found]) from None
    problems += _find_inconsistencies(settings)
    if problems:
        raise SettingsInvalid(problems)
    return settings


def _decode(name: str, text: str) -> Any:
    """Return the unchanged text of a text setting, and otherwise the decoded JSON.

    Text that is not valid JSON is returned unchanged, and validation refuses it later.
    """
    if get_origin(_FIELDS[name].annotation) is None and _FIELDS[name].annotation is str:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _describe(error: ErrorDetails, texts: Mapping[str, str]) -> str:
    """Return the message about a setting that pydantic found missing or invalid.

    The field's description says what was expected.
    """
    name = str(error["loc"][0])
    if error["type"] == "missing" and len(error["loc"]) == 1:
        return f"detcloud:{name} is missing: `pulumi config set` sets it"
    expected = str(_FIELDS[name].description)
    if name not in _SECRETS:
        return _problem(f"detcloud:{name}", texts[name], expected)
    # The faults that the check of the setting found, without the value.
    fault = error.get("ctx", {}).get("error")
    return _problem(f"detcloud:{name}", "(a secret)", str(fault or expected))


def _find_inconsistencies(settings: Settings) -> list[str]:
    """Return a line for each contradiction between individually valid settings; [] without any."""
    found = find_remote_problems(settings.other_clouds, launcher_of(settings.names))
    found += find_access_problems(settings.names, settings.data_buckets, settings.task_accounts)
    found += find_copy_problems(settings.copies, settings.region, settings.kms_key, _WHY_NO_KEY)
    if settings.network is not None and settings.regions:
        found.append("detcloud:regions is for the stack's own network: remove it or network")
    if settings.network is not None and settings.private_subnets:
        found.append(
            "detcloud:privateSubnets is for the stack's own network: leave it out; instances in "
            "an existing network have no public address unless provider.network_interface names it"
        )
    if settings.monthly_budget and not settings.alarm_email:
        found.append("detcloud:alarmEmail is missing: a budget needs an address to notify")
    if bool(settings.monthly_budget) != bool(settings.billing_account):
        found.append(
            "detcloud:monthlyBudget and detcloud:billingAccount must be set together: set "
            "both or neither"
        )
    if bool(settings.image) != bool(settings.suggest_image):
        found.append(
            "detcloud:image and detcloud:suggestImage must be set together: set both or neither"
        )
    place = f"/locations/{settings.region}/"
    if settings.kms_key and place not in settings.kms_key:
        found.append(
            f"detcloud:kmsKey is {settings.kms_key}: expected a key in {settings.region}, "
            "the region of the encrypted resources"
        )
    others = [
        subnetwork_region
        for subnetwork_region in settings.subnetwork_regions
        if subnetwork_region != settings.region
    ]
    if settings.kms_key and others:
        where = "network" if settings.network else "regions"
        found.append(
            f"detcloud:{where} has {', '.join(others)}: expected {settings.region} alone, where "
            "detcloud:kmsKey is, for a key encrypts disks of its own region alone"
        )
    return found


def _problem(place: str, value: object, expected: str) -> str:
    """Return the line `PLACE is VALUE: expected EXPECTED`; VALUE is JSON, cut to 80 characters."""
    shown = json.dumps(value)
    return f"{place} is {shown if len(shown) <= 80 else shown[:77] + '...'}: expected {expected}"


_FIELDS: Final = {
    str(field.alias): field for name, field in Settings.model_fields.items() if name != "team"
}
