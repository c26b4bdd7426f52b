"""Google's part of what trials may use besides their checkpoints: tokens of the service account of
a pool's code, and logins at private repositories of Artifact Registry.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from control_plane.agents.storage_credentials import StorageToken
from control_plane.agents.trial_grants import DataForm, RegistryLogin
from control_plane.gcp.account_tokens import AccountTokens
from control_plane.gcp.storage_credentials import (
    boundary_of,
    boundary_rule,
    list_condition,
    name_condition,
)
from detcloud.shared.registries import artifact_repository

# As long as AWS's, for a pull of a large image.
PULL_SECONDS = 900
# The name with which Artifact Registry takes an access token for a password.
TOKEN_USER = "oauth2accesstoken"


class DataPlace(NamedTuple):
    """A bucket, or a folder in it without a slash at its end, that code may read or also write."""

    bucket: str
    folder: str
    writes: bool


class AccountGrants:
    """Gives access by service accounts of which the API may create tokens.

    `data_account` is that of the code of trials in pools that have none in `pool_accounts`, ""
    where that code gets no tokens: its tokens open `data_places` and nothing else. `pull_account`
    may pull from `repositories`, such as us-central1-docker.pkg.dev/acme-ml/images.
    """

    data_form: DataForm = "google"

    def __init__(
        self,
        tokens: AccountTokens,
        *,
        data_account: str = "",
        data_places: Sequence[tuple[str, str, bool]] = (),
        pool_accounts: Mapping[str, str] | None = None,
        pull_account: str = "",
        repositories: Sequence[str] = (),
    ) -> None:
        self._tokens = tokens
        self._data_account = data_account
        self._data_places = tuple(DataPlace(*place) for place in data_places)
        self._pool_accounts = pool_accounts or {}
        self._pull_account = pull_account
        self._repositories = frozenset(repositories)

    def gives_data_keys(self, pool: str) -> bool:
        """Whether the code of a pool's trials gets tokens."""
        return bool(self._pool_accounts.get(pool) or self._data_account)

    def issue_data_keys(self, name: str, pool: str) -> StorageToken:
        """Issue a token of the pool's account, or one for the places of data; OSError if Google
        does not.
        """
        account = self._pool_accounts.get(pool)
        if account:
            return self._tokens.issue_token(account, name)
        boundary = data_boundary(self._data_places, name)
        return self._tokens.issue_token(self._data_account, name, boundary=boundary)

    def gives_login(self, image: str) -> bool:
        """Whether the image is in one of the repositories."""
        return artifact_repository(image) in self._repositories

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        """Issue a login that pulls from the repositories; OSError if Google does not. No token is
        narrowed to one of them: boundaries are Cloud Storage's alone.
        """
        token = self._tokens.issue_token(self._pull_account, name, seconds=PULL_SECONDS)
        return RegistryLogin(TOKEN_USER, token.access_token)


def data_boundary(places: Sequence[DataPlace], title: str) -> dict[str, Any]:
    """The boundary of a token that opens these places and nothing else."""
    rules = []
    for place in places:
        role = "roles/storage.objectUser" if place.writes else "roles/storage.objectViewer"
        condition = ""
        if place.folder:
            names = name_condition(place.bucket, place.folder)
            condition = f"{names} || {list_condition(place.folder)}"
        rules.append(boundary_rule(place.bucket, role, title, condition))
    return boundary_of(rules)
