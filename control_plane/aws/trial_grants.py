"""AWS's part of what trials may use besides their checkpoints: sessions of the role of a pool's
code, and logins at private registries of ECR.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from control_plane.agents.storage_credentials import SECONDS_MAX, StorageCredentials
from control_plane.agents.trial_grants import DataForm, RegistryLogin
from control_plane.aws.role_sessions import assume_role, error_reason
from detcloud.shared.registries import EcrRepository, ecr_repository

# STS gives no session less than 15 minutes; ECR's token is good for as long as its session.
PULL_SECONDS = 900
PULL_ACTIONS = (
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:GetDownloadUrlForLayer",
)


class StsTrialGrants:
    """Gives access by roles that the API may assume.

    `token_service` is boto3's client of STS, and `make_registry_client` makes one of ECR in a
    region with the keys of a session. `data_role` is the role of the code of trials in pools that
    have none in `pool_roles`, "" where that code gets no keys. `pull_role` may pull from
    `repositories`, names of repositories with their registries, of which `*` at the end of one
    stands for the rest.
    """

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
        self._token_service = token_service
        self._make_registry_client = make_registry_client
        self._data_role = data_role
        self._pool_roles = pool_roles or {}
        self._pull_role = pull_role
        self._repositories = repositories

    def gives_data_keys(self, pool: str) -> bool:
        """Whether the code of a pool's trials gets keys."""
        return bool(self._role_of(pool))

    def issue_data_keys(self, name: str, pool: str) -> StorageCredentials:
        """Issue keys of the pool's role; OSError if AWS does not."""
        return assume_role(self._token_service, self._role_of(pool), name, SECONDS_MAX)

    def gives_login(self, image: str) -> bool:
        """Whether the image is in one of the repositories."""
        repository = ecr_repository(image)
        return repository is not None and any(
            matches_repository(repository, pattern) for pattern in self._repositories
        )

    def issue_login(self, name: str, image: str) -> RegistryLogin:
        """Issue a login at the image's registry that pulls from its repository alone; OSError if
        AWS does not.
        """
        repository = ecr_repository(image)
        assert repository is not None, image
        policy = pull_policy(repository)
        keys = assume_role(self._token_service, self._pull_role, name, PULL_SECONDS, policy)
        try:
            client = self._make_registry_client(repository.region, keys)
            # Of one's own registry; it is good for all that the session may pull from.
            [found] = client.get_authorization_token()["authorizationData"]
        except (BotoCoreError, ClientError) as error:
            raise OSError(f"cannot log in to {repository.host}: {error_reason(error)}") from error
        token = base64.b64decode(found["authorizationToken"]).decode()
        username, _, password = token.partition(":")
        return RegistryLogin(username, password)

    def _role_of(self, pool: str) -> str:
        return self._pool_roles.get(pool) or self._data_role


def matches_repository(repository: EcrRepository, pattern: str) -> bool:
    """Whether a pattern, such as 123456789012.dkr.ecr.eu-west-1.amazonaws.com/ml/*, matches it."""
    name = f"{repository.host}/{repository.name}"
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def pull_policy(repository: EcrRepository) -> dict[str, Any]:
    """The policy document of a session that pulls from the repository alone."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"},
            {"Effect": "Allow", "Action": list(PULL_ACTIONS), "Resource": repository.arn},
        ],
    }
