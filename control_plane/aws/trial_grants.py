"""Grants to trials on AWS, in addition to checkpoints.

A grant is a session of the role of a pool's training code, or a login at a private registry of ECR.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from control_plane.agents.storage_credentials import SECONDS_MAX, StorageCredentials
from control_plane.agents.trial_grants import DataForm, RegistryLogin
from control_plane.aws.role_sessions import assume_role, error_reason
from detcloud.shared.registries import EcrRepository, ecr_repository

# The shortest validity of an STS session. ECR's token is valid as long as the session.
PULL_SECONDS = 900
PULL_ACTIONS = (
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:GetDownloadUrlForLayer",
)


class StsTrialGrants:
    """The TrialGrants of AWS, through roles that the API may assume."""

    data_form: DataForm = "given"

    def __init__(
        self,
        token_service: Any,
        make_registry_client: Callable[[str, StorageCredentials], Any],
        *,
        data_role: str = "",
        pool_roles: Mapping[str, str] | None = None,
        pull_role: str = "",
        repositories: tuple[str, ...] = (),
    ) -> None:
        """Configure the roles, each named by its ARN.

        Args:
            token_service: boto3's client of STS.
            make_registry_client: creates boto3's client of ECR from a region and a session's keys.
            data_role: the role for the code of trials in pools without an entry in `pool_roles`.
                "": this code gets no keys.
            pool_roles: the role for the code of trials in a pool, by the name of the pool.
            pull_role: the role that may pull from `repositories`.
            repositories: patterns of repositories, as in `matches_repository`.
        """
        self._token_service = token_service
        self._make_registry_client = make_registry_client
        self._data_role = data_role
        self._pool_roles = pool_roles or {}
        self._pull_role = pull_role
        self._repositories = repositories

    def gives_data_keys(self, pool: str) -> bool:
        """Return whether the training code of this pool's trials gets keys."""
        return bool(self._role_of(pool))

    def issue_data_keys(self, name: str, pool: str) -> StorageCredentials:
        """Issue an hour's keys of the pool's own role or else the data role, with full access.

        `name` is the name of the session. Raises OSError if AWS issues no keys. Call only if
        `gives_data_keys` returns True.
        """
        return assume_role(self._token_service, self._role_of(pool), name, SECONDS_MAX)

    def gives_login(self, image: str) -> bool:
        """Return whether the image is in a private ECR repository that matches a pattern."""
        repository = ecr_repository(image)
        return repository is not None and any(
            matches_repository(repository, pattern) for pattern in self._repositories
        )

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        """Issue a login at the image's ECR registry, valid for PULL_SECONDS.

        The login can only pull from the image's repository. `name` is the name of the session.
        Raises OSError if AWS issues no login. The image must be in an ECR repository.
        """
        repository = ecr_repository(image)
        assert repository is not None, image
        policy = pull_policy(repository)
        keys = assume_role(self._token_service, self._pull_role, name, PULL_SECONDS, policy)
        try:
            client = self._make_registry_client(repository.region, keys)
            # The token is of the account's own registry, but valid for every repository that the
            # session may pull from.
            [found] = client.get_authorization_token()["authorizationData"]
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"cannot log in to {repository.host}: {error_reason(error)}") from error
        token = base64.b64decode(found["authorizationToken"]).decode()
        username, _, password = token.partition(":")
        return RegistryLogin(username, password)

    def _role_of(self, pool: str) -> str:
        """Return the ARN of the role for the code of a pool's trials, or "" for no role."""
        return self._pool_roles.get(pool) or self._data_role


def matches_repository(repository: EcrRepository, pattern: str) -> bool:
    """Return whether a repository matches a pattern.

    A pattern is HOST/NAME, such as 123456789012.dkr.ecr.eu-west-1.amazonaws.com/ml/*. A `*` at the
    end matches any rest, also an empty rest or a rest with slashes. Without a `*` at the end, the
    repository must equal the pattern.
    """
    name = f"{repository.host}/{repository.name}"
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def pull_policy(repository: EcrRepository) -> dict[str, Any]:
    """Return the policy document of a session that can only pull from this repository."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"},
            {"Effect": "Allow", "Action": list(PULL_ACTIONS), "Resource": repository.arn},
        ],
    }
