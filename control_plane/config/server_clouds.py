"""The file that names the remote accounts of a cluster on own machines: `--clouds FILE`.

A remote account is an account on AWS or a project on Google Cloud. With a remote account, the
cluster can have pools in this cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator

from control_plane.config.problems import ConfigInvalid, Problem
from control_plane.config.section import Loose, Section, findings_of, refuse, refuse_at
from control_plane.config.yaml_document import line_of, parse_document
from control_plane.findings import path_text, value_text
from control_plane.text_forms import text_form

SUBNETS_MAX: Final = 6
REGIONS_MAX: Final = 16
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
NAME: Final = text_form(
    r"^[a-z](?:-?[a-z0-9]){0,19}$",
    "1 to 20 lowercase letters, digits and single hyphens, of which the first is a letter",
)
AWS_ACCOUNT: Final = text_form(r"^[0-9]{12}$", "the 12 digits of an account of AWS, in quotes")
AWS_REGION: Final = text_form(
    # Regions in China have other addresses. Regions of other partitions have four parts.
    r"^(?:[abd-z][a-z]|c[a-mo-z])-[a-z]+-[0-9]$",
    "a region of the partition aws, such as us-east-1",
)
ZONE: Final = text_form(r"^[a-z]{2}-[a-z]+-[0-9][a-z]$", "a zone such as us-east-1a")
SUBNET: Final = text_form(r"^subnet-[0-9a-f]+$", "the id of a subnet, such as subnet-0a1b2c3d")
SECURITY_GROUP: Final = text_form(
    r"^sg-[0-9a-f]+$", "the id of a security group, such as sg-0a1b2c3d"
)
AWS_PRINCIPAL: Final = text_form(
    r"^arn:aws:iam::[0-9]{12}:(?:user|role)/[A-Za-z0-9_+=,.@/-]+$",
    "the ARN of an IAM user or role, such as arn:aws:iam::111111111111:user/lab",
)
AWS_ROLE: Final = text_form(
    r"^arn:aws:iam::[0-9]{12}:role/[A-Za-z0-9_+=,.@/-]+$",
    "the ARN of an IAM role, such as arn:aws:iam::111111111111:role/lab-checkpoints",
)
PROJECT: Final = text_form(
    r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$", "the id of a project of Google Cloud, such as acme-ml"
)
GCP_REGION: Final = text_form(r"^[a-z]+-[a-z]+[0-9]{1,2}$", "a region such as us-central1")
_EMAIL: Final = r"[a-zA-Z0-9._+-]+@[a-zA-Z0-9.-]+\.[a-z]+"
GCP_PRINCIPAL: Final = text_form(
    rf"^(?:serviceAccount|user):{_EMAIL}$",
    "serviceAccount:EMAIL or user:EMAIL, the account with which the server calls Google Cloud",
)
SERVICE_ACCOUNT: Final = text_form(rf"^{_EMAIL}$", "the e-mail address of a service account")

_EXAMPLE: Final = "name: lab"


def _check_address(url: str) -> str:
    """Return the URL without a slash at the end. Raise PydanticCustomError for another address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", 0, urlsplit("")
    is_plain = not (parts.query or parts.fragment or parts.username or parts.path.strip("/"))
    # Emulated clouds run on this machine.
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK)
    if not (host and is_plain and is_safe and port != 0):
        refuse(
            f"must be an address https://HOST or https://HOST:PORT, not {value_text(url)}",
            "machines in the cloud call the server at this address, for example through a reverse "
            "proxy with a certificate",
        )
    return url.rstrip("/")


def _check_different(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values unchanged. Raise PydanticCustomError if two values are equal."""
    if len(set(values)) != len(values):
        refuse("must be different regions", shown=False)
    return values


class AwsCloud(Section):
    """A remote account on AWS."""

    # The settings of stacks have this name.
    unknown_field_hints: ClassVar[Mapping[str, str]] = {"securityGroup": "use security_group"}

    account: Annotated[str, Field(pattern=AWS_ACCOUNT)]
    """The id of the account."""
    region: Annotated[str, Field(pattern=AWS_REGION)]
    """The region of pools that name no region."""
    subnets: Annotated[
        dict[Annotated[str, Field(pattern=ZONE)], Annotated[str, Field(pattern=SUBNET)]],
        Field(min_length=1, max_length=SUBNETS_MAX),
    ]
    """The id of a subnet for each zone."""
    security_group: Annotated[str, Field(pattern=SECURITY_GROUP)]
    """The id of the instances' security group."""
    principal: Annotated[str, Field(pattern=AWS_PRINCIPAL)] | None = None
    """The IAM user or role with which the server calls AWS, and which the role `launcher` trusts.
    Without this field, the server launches with its own permissions.
    """
    storage_role: Annotated[str, Field(pattern=AWS_ROLE)] | None = None
    """The role with access to the bucket of checkpoints. From this role, the server issues
    credentials to each trial. Without this field, trials use their own credentials.
    """

    @property
    def place(self) -> tuple[str, str]:
        """The account and the region of the server's instances."""
        return self.account, self.region


class GoogleCloud(Section):
    """A remote account on Google Cloud: a project."""

    project: Annotated[str, Field(pattern=PROJECT)]
    """The id of the project."""
    region: Annotated[str, Field(pattern=GCP_REGION)]
    """The region of pools that name no region."""
    regions: Annotated[
        tuple[Annotated[str, Field(pattern=GCP_REGION)], ...],
        Loose,
        Field(max_length=REGIONS_MAX),
        AfterValidator(_check_different),
    ] = ()
    """Further regions with subnetworks."""
    principal: Annotated[str, Field(pattern=GCP_PRINCIPAL)] | None = None
    """The account with which the server calls Google Cloud, and which may act as the service
    account `launcher`. Without this field, the server launches with its own permissions.
    """
    storage_account: Annotated[str, Field(pattern=SERVICE_ACCOUNT)] | None = None
    """The service account with access to the bucket of checkpoints. From this account, the server
    issues a token to each trial. Without this field, trials use their own credentials.
    """

    @property
    def place(self) -> tuple[str, str]:
        """The project of the server's instances. The second text is empty."""
        return self.project, ""


class ServerClouds(Section):
    """The remote accounts of a cluster on own machines, and the cluster's public address."""

    name: Annotated[str, Field(pattern=NAME)]
    """The name of the cluster in the clouds: roles and instances are named `detcloud-NAME-...`."""
    url: Annotated[str, AfterValidator(_check_address)]
    """The address of the server that machines in the clouds call."""
    aws: AwsCloud | None = None
    gcp: GoogleCloud | None = None

    @model_validator(mode="after")
    def _check_clouds(self) -> Self:
        if self.aws is None and self.gcp is None:
            refuse_at(("aws",), "is required, or gcp", "--clouds none removes all clouds")
        if self.aws and self.gcp and self.aws.storage_role and self.gcp.storage_account:
            refuse_at(
                ("gcp", "storage_account"),
                "cannot be used together with aws.storage_role",
                "the checkpoints of a cluster are in a single cloud",
            )
        return self

    @property
    def clouds(self) -> Mapping[str, AwsCloud | GoogleCloud]:
        """The remote accounts by provider type."""
        found = {"aws": self.aws, "gcp": self.gcp}
        return {name: cloud for name, cloud in found.items() if cloud is not None}


def check_server_clouds(text: str) -> ServerClouds:
    """Return the checked remote accounts in the text of a file, which is YAML.

    Raises:
        ConfigInvalid: the file is invalid. The error contains every problem with its place.
    """
    document = parse_document(text)
    if not isinstance(document.tree, Mapping):
        hint = f"like '{_EXAMPLE}'; docs/resource-pools.md has an example"
        raise ConfigInvalid([Problem("", 1, None, "must be a map of fields", hint)])
    found = [*document.findings]
    try:
        clouds = ServerClouds.model_validate(document.tree)
    except ValidationError as error:
        found += findings_of(error)
    if found:
        raise ConfigInvalid(
            Problem(
                path_text(item.loc),
                line_of(document.place, item.loc)[0],
                item.shown_value,
                item.message,
                item.hint,
            )
            for item in found
        )
    return clouds
