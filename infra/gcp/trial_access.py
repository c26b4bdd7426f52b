"""The access of trials to resources outside the cluster, and the grants for this access. Pure.

The resources are data buckets, service accounts for trials' code, and private image repositories.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, StringConstraints

from detcloud.shared.registries import artifact_repository
from infra.data_buckets import DataBucket, find_own_buckets, parse_data_buckets
from infra.gcp.names import Names
from infra.gcp.policies import PROJECT, Grant, Place

# A Credential Access Boundary has at most ten rules, and each bucket needs a rule.
BUCKETS_MAX: Final = 10
REPOSITORIES_MAX: Final = 50
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_ACCOUNT: Final = (
    r"^(?:[a-z][a-z0-9-]{4,28}[a-z0-9]@[a-z][a-z0-9-]{4,28}[a-z0-9]\.iam"
    r"|[0-9]{5,15}-compute@developer)\.gserviceaccount\.com$"
)
_REPOSITORY: Final = re.compile(r"([a-z0-9-]+)-docker\.pkg\.dev/([a-z0-9-]+)/([a-z][a-z0-9-]*)")


def _check_buckets(given: object) -> tuple[DataBucket, ...]:
    """Return the data buckets of a map. Raise ValueError for an invalid value."""
    return parse_data_buckets(given, _BUCKET, BUCKETS_MAX)


def _check_repositories(given: object) -> tuple[str, ...]:
    """Return the repositories of a list without duplicates. Raise ValueError for another value."""
    names = given if isinstance(given, list) else []
    if not names or len(names) > REPOSITORIES_MAX:
        raise ValueError("a list")
    if not all(isinstance(name, str) and _REPOSITORY.fullmatch(name) for name in names):
        raise ValueError("repositories")
    # Names of images contain the repository's name in this form.
    return tuple(
        dict.fromkeys(name for name in names if artifact_repository(f"{name}/image") == name)
    )


DataBuckets = Annotated[tuple[DataBucket, ...], BeforeValidator(_check_buckets)]
Repositories = Annotated[tuple[str, ...], BeforeValidator(_check_repositories)]
TaskAccounts = Annotated[
    dict[str, Annotated[str, StringConstraints(pattern=_ACCOUNT)]], Field(max_length=50)
]


@dataclass(frozen=True)
class TrialAccess:
    """The access of trials to resources outside the cluster, according to the settings."""

    buckets: tuple[DataBucket, ...] = ()
    """The buckets that trials use with tokens of the stack's service account `data`."""
    pool_accounts: tuple[tuple[str, str], ...] = ()
    """Pairs of a pool and the service account that the pool's trials use instead of `data`."""
    repositories: tuple[str, ...] = ()
    """The repositories from which images of trials are pulled."""

    def list_grants(self, names: Names) -> list[Grant]:
        """Return the grants to the accounts `data` and `pull`, and the API's grants on both.

        Accounts without buckets or repositories get no grant. Owners of buckets and repositories in
        other projects must grant the access themselves.
        """
        found = [_data_grant(bucket) for bucket in self.buckets]
        found += [
            Grant("pull", "pull_images", Place("image_repository", f"{location}/{repository}"))
            for location, project, repository in map(split_repository, self.repositories)
            if project == names.project
        ]
        used = [*(["data"] if self.buckets else []), *(["pull"] if self.repositories else [])]
        return [*found, *(Grant("api", "issue_tokens", Place("account", name)) for name in used)]

    def describe(self, names: Names) -> str:
        """Return the JSON of the API's variable DETCLOUD_TRIAL_GRANTS, or "" without any access."""
        places = [
            (item["bucket"], item["folder"].rstrip("/"), item["writes"])
            for item in map(asdict, self.buckets)
        ]
        data = {"data_account": names.email("data"), "data_places": places} if places else {}
        pools = {"pool_accounts": dict(self.pool_accounts)} if self.pool_accounts else {}
        pulls: dict[str, Any] = {}
        if self.repositories:
            pulls = {"pull_account": names.email("pull"), "repositories": self.repositories}
        described = {**data, **pools, **pulls}
        return json.dumps(described, separators=(",", ":")) if described else ""


def find_access_problems(
    names: Names, buckets: tuple[DataBucket, ...], pool_accounts: Mapping[str, str]
) -> list[str]:
    """Return a line for each data bucket or service account that is the cluster's own.

    Return [] without any. `pool_accounts` maps pools to service accounts.
    """
    found = find_own_buckets(buckets, (names.objects, names.checkpoints))
    own = f"dc-{names.team}-"
    return found + [
        f"detcloud:taskAccounts gives the trials of {pool} {account}: expected an account that is "
        "not the cluster's own"
        for pool, account in pool_accounts.items()
        if account.startswith(own) and account.endswith(f"@{names.project}.iam.gserviceaccount.com")
    ]


def find_unknown_pools(
    pool_accounts: Mapping[str, str], pools: Iterable[str], file: str
) -> list[str]:
    """Return a line for each pool of `pool_accounts` that is not among `pools`.

    `file` is the path of the cluster configuration, for the message.
    """
    known = list(pools)
    return [
        f"detcloud:taskAccounts gives an account to the trials of {name}: expected a pool of "
        f"{file}, which has {', '.join(known)}"
        for name in pool_accounts
        if name not in known
    ]


def split_repository(name: str) -> tuple[str, str, str]:
    """Return (location, project, repository) of a valid name of an Artifact Registry repository.

    Any other name is a programming error, and raises AssertionError.
    """
    found = _REPOSITORY.fullmatch(name)
    assert found, name
    return found[1], found[2], found[3]


def _data_grant(place: DataBucket) -> Grant:
    """Return the grant to the account `data` for a bucket and the objects in the place's folder.

    The API restricts each trial's token further, for example to listing a folder.
    """
    bucket = f"projects/_/buckets/{place.bucket}"
    objects = f"{bucket}/objects/{place.folder}"
    condition = f'resource.name == "{bucket}" || resource.name.startsWith("{objects}")'
    role = "write_data" if place.writes else "read_data"
    return Grant("data", role, Place(PROJECT, ""), condition)
