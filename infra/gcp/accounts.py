"""The service accounts of functions, instances and trials, and grants of roles to accounts."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
from pulumi_gcp import (
    artifactregistry,
    cloudrunv2,
    compute,
    projects,
    secretmanager,
    serviceaccount,
    storage,
)

from infra.gcp.names import OTHER_ACCOUNTS, RELAY, TRIAL_ACCOUNTS
from infra.gcp.policies import HOST_ROLE, ROLES, Grant
from infra.gcp.scope import Scope
from infra.gcp.settings import subnetwork_project
from lambdas.gcp.function_names import ACCOUNT_FUNCTIONS, ACCOUNT_OF

TITLES = {
    "instance": "instances of the cluster",
    "storage": "what trials may do with checkpoints, narrowed for each",
    "data": "what the code of trials may do with data, narrowed for each",
    "pull": "pulls of images of trials",
    "events": "what calls the cluster's functions",
    "build": "the build of the functions' image",
    "relay": "the relay of tunnels",
}


@dataclass(frozen=True)
class Accounts:
    """The service accounts and custom roles of a stack, as resources."""

    accounts: Mapping[str, Any]
    """The service accounts by name, such as `tick`."""
    roles: Mapping[str, Any]
    """The custom roles by name."""
    given: dict[str, list[pulumi.Resource]] = field(default_factory=dict)
    """The grants to each account, which must exist before anything uses the account."""

    def email_of_function(self, function: str) -> Any:
        """Return the e-mail address of the account that a function runs as, as a Pulumi output."""
        return self.email(ACCOUNT_OF.get(function, function))

    def given_of_function(self, function: str) -> list[pulumi.Resource]:
        """Return the grants to the account that a function runs as."""
        return self.given.get(ACCOUNT_OF.get(function, function), [])

    def email(self, name: str) -> Any:
        """Return the e-mail address of the named account, as a Pulumi output.

        Raise KeyError for an account that the stack does not have.
        """
        return self.accounts[name].email


def make_accounts(scope: Scope, grants: list[Grant]) -> Accounts:
    """Create the service accounts and the custom roles that `grants` use.

    Accounts of TRIAL_ACCOUNTS are created only if `grants` has a grant on the account, and the
    account of the relay only with the setting `relay`. The roles are not granted yet; `give_roles`
    grants them.
    """
    places = {grant.place.name for grant in grants if grant.place.kind == "account"}
    trials = [name for name in TRIAL_ACCOUNTS if name in places]
    relay = [RELAY] if scope.settings.relay else []
    names = (*ACCOUNT_FUNCTIONS, *OTHER_ACCOUNTS, *trials, *relay)
    accounts = {name: _make_account(scope, name) for name in names}
    used = {grant.role for grant in grants}
    return Accounts(accounts, {role: _make_role(scope, role) for role in ROLES if role in used})


def _make_account(scope: Scope, name: str) -> Any:
    """Create and return a service account."""
    cluster = scope.names.cluster
    title = TITLES.get(name, f"the function {name}")
    return serviceaccount.Account(
        name,
        project=scope.settings.project,
        account_id=scope.names.account_id(name),
        display_name=f"{cluster}: {name}",
        description=f"{cluster}: {title}",
        opts=scope.options(),
    )


def _make_role(scope: Scope, role: str) -> Any:
    """Create and return a custom role of the project with the permissions of ROLES."""
    return projects.IAMCustomRole(
        role,
        project=scope.settings.project,
        role_id=scope.names.role_id(role),
        title=f"{scope.names.cluster}: {role.replace('_', ' ')}",
        permissions=list(ROLES[role]),
        stage="GA",
        opts=scope.options(),
    )


@dataclass(frozen=True)
class Places:
    """The resources on which roles are granted."""

    buckets: Mapping[str, Any] = field(default_factory=dict)
    """The buckets by name, as in grants."""
    subnetworks: Mapping[str, Any] = field(default_factory=dict)
    """The subnetworks by region."""
    services: Mapping[str, Any] = field(default_factory=dict)
    """The Cloud Run services by function."""
    repository: Any = None
    """The repository of the functions' images."""
    secret: Any = None
    """The secret of the relay, if the stack has a relay."""


def give_roles(
    scope: Scope, accounts: Accounts, grants: list[Grant], kinds: Collection[str], places: Places
) -> None:
    """Create the grants on resources of the given kinds, and record each in `accounts.given`.

    `kinds` has values of `Place.kind`, such as `bucket`. Other grants are skipped. `places` must
    contain the resources of these kinds.
    """
    for grant in grants:
        if grant.place.kind in kinds:
            made = _give_role(scope, accounts, grant, places)
            accounts.given.setdefault(grant.account, []).append(made)


def _give_role(scope: Scope, accounts: Accounts, grant: Grant, places: Places) -> pulumi.Resource:
    """Create and return the IAM member for a grant, on the resource of the grant's place.

    On a subnetwork of another project, grant HOST_ROLE instead of the grant's role.
    """
    place = grant.place
    name = "-".join(filter(None, (grant.account, grant.role, place.name.replace("/", "-"))))
    if grant.account == "data":
        # Several grants of one bucket differ only in the condition's folder.
        name += f"-{hashlib.sha256(grant.condition.encode()).hexdigest()[:8]}"
    title = f"{grant.account} {grant.role}"
    condition = {"title": title, "expression": grant.condition}
    common: dict[str, Any] = {
        "role": accounts.roles[grant.role].name,
        "member": accounts.accounts[grant.account].member,
        **({"condition": condition} if grant.condition else {}),
        "opts": scope.options(),
    }
    project, region = scope.settings.project, scope.settings.region
    made: pulumi.Resource
    match place.kind:
        case "project":
            made = projects.IAMMember(name, project=project, **common)
        case "account":
            account = accounts.accounts[place.name].name
            made = serviceaccount.IAMMember(name, service_account_id=account, **common)
        case "bucket":
            bucket = places.buckets[place.name].name
            made = storage.BucketIAMMember(name, bucket=bucket, **common)
        case "subnetwork":
            subnetwork = places.subnetworks[place.name]
            if subnetwork in scope.settings.host_subnetworks:
                # A custom role of this project cannot be granted in the host project.
                project = subnetwork_project(subnetwork, project)
                common["role"] = HOST_ROLE
            made = compute.SubnetworkIAMMember(
                name, project=project, region=place.name, subnetwork=subnetwork, **common
            )
        case "service":
            service = places.services[place.name].name
            made = cloudrunv2.ServiceIamMember(
                name, project=project, location=region, name=service, **common
            )
        case "secret":
            made = secretmanager.SecretIamMember(
                name, project=project, secret_id=places.secret.secret_id, **common
            )
        case "image_repository":
            location, _, repository = place.name.partition("/")
            made = artifactregistry.RepositoryIamMember(
                name, project=project, location=location, repository=repository, **common
            )
        case _:
            repository = places.repository.repository_id
            made = artifactregistry.RepositoryIamMember(
                name, project=project, location=region, repository=repository, **common
            )
    return made
