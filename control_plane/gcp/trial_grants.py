"""Grants to trials on Google Cloud, in addition to checkpoints.

A grant is a token of the service account of a pool's training code, or a login at private
repositories of Artifact Registry.
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

# The validity of a login, enough to pull a large image; the same as on AWS.
PULL_SECONDS = 900
# The user name with which Artifact Registry accepts an access token as the password.
TOKEN_USER = "oauth2accesstoken"


class DataPlace(NamedTuple):
    """A bucket or a folder of a bucket that training code may read, and perhaps write."""

    bucket: str
    folder: str
    """The folder without a slash at the end; "" for the whole bucket."""
    writes: bool
    """Whether the code may also write."""


class AccountGrants:
    """The TrialGrants of Google Cloud, through service accounts whose tokens the API may create."""

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
        """Configure the accounts, each named by its e-mail address.

        Args:
            tokens: the issuer of tokens.
            data_account: the account for the code of trials in pools without an entry in
                `pool_accounts`. Its tokens open only `data_places`. "": this code gets no tokens.
            data_places: the arguments of each DataPlace: bucket, folder, writes.
            pool_accounts: the account for the code of trials in a pool, by the name of the pool.
                Its tokens have the account's full access.
            pull_account: the account that may pull from `repositories`.
            repositories: repositories such as us-central1-docker.pkg.dev/acme-ml/images.
        """
        self._tokens = tokens
        self._data_account = data_account
        self._data_places = tuple(DataPlace(*place) for place in data_places)
        self._pool_accounts = pool_accounts or {}
        self._pull_account = pull_account
        self._repositories = frozenset(repositories)

    def gives_data_keys(self, pool: str) -> bool:
        """Return whether the training code of this pool's trials gets tokens."""
        return bool(self._pool_accounts.get(pool) or self._data_account)

    def issue_data_keys(self, name: str, pool: str) -> StorageToken:
        """Issue an hour's token for the training code of a trial in `pool`.

        The token has the full access of the pool's own account. Without an own account, the token
        is of the data account, and a boundary limits the token to the buckets and folders in
        `data_places`. Call only if `gives_data_keys` returns True. Raises OSError if Google does
        not issue the token.

        Args:
            name: the name of the session, for errors and as the title of the boundary's conditions.
        """
        account = self._pool_accounts.get(pool)
        if account:
            return self._tokens.issue_token(account, name)
        boundary = data_boundary(self._data_places, name)
        return self._tokens.issue_token(self._data_account, name, boundary=boundary)

    def gives_login(self, image: str) -> bool:
        """Return whether the image is in a configured repository."""
        return artifact_repository(image) in self._repositories

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        """Issue a login, valid for PULL_SECONDS, that can pull from all configured repositories.

        Google cannot limit the token to the repository of `image`, which is ignored: boundaries
        exist only for Cloud Storage. Call only if `gives_login` returns True. Raises OSError if
        Google issues no token.

        Args:
            name: the name of the session, for errors.
        """
        token = self._tokens.issue_token(self._pull_account, name, seconds=PULL_SECONDS)
        return RegistryLogin(TOKEN_USER, token.access_token)


def data_boundary(places: Sequence[DataPlace], title: str) -> dict[str, Any]:
    """Return the boundary of a token that opens only these places.

    The token may read and list the objects of each place. If `writes` is set, it may also create,
    replace and delete objects there. `title` is the title of each condition. A place without a
    folder needs no condition, and opens the whole bucket.
    """
    rules = []
    for place in places:
        role = "roles/storage.objectUser" if place.writes else "roles/storage.objectViewer"
        condition = ""
        if place.folder:
            names = name_condition(place.bucket, place.folder)
            condition = f"{names} || {list_condition(place.folder)}"
        rules.append(boundary_rule(place.bucket, role, title, condition))
    return boundary_of(rules)
