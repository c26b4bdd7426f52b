"""Checks that long settings fit the limits of IAM and Lambda, before anything is created. Pure.

Sources: IAM user guide, "IAM and AWS STS quotas" (the inline policies of a role: 10,240 characters
without white space); Lambda developer guide, "Lambda quotas" (environment variables: 4 KB).
"""

import json
from collections.abc import Iterator
from typing import Final

from infra.aws import policies, trial_policies
from infra.aws.policy_statements import Document
from infra.aws.settings import Settings
from infra.remote_settings import describe_remote_accounts

POLICY_CHARACTERS_MAX: Final = 10_240
ENVIRONMENT_BYTES_MAX: Final = 4_096
# Upper bounds for the other environment variables of the API and of the tick, and for a policy's
# statements about logs, traces and a key.
API_BYTES: Final = 2_300
TICK_BYTES: Final = 2_500
ADDED_CHARACTERS: Final = 900


def find_limit_problems(settings: Settings) -> list[str]:
    """Return a line for each group of settings that exceeds a limit of AWS; [] if all fit.

    IAM limits the characters of a policy, and Lambda the bytes of a function's environment. AWS is
    not called.
    """
    return [*_policy_problems(settings), *_environment_problems(settings)]


def _policy_problems(settings: Settings) -> Iterator[str]:
    """Yield a line for each setting with a policy of more than POLICY_CHARACTERS_MAX characters."""
    api = trial_policies.with_sessions(
        policies.api(settings.names), list(settings.task_roles.values())
    )
    documents = {
        "dataBuckets": (trial_policies.data_access(settings.data_buckets), "shorter folders"),
        "imageRepositories": (trial_policies.pulls(settings.image_repositories), "a * for several"),
        "taskRoles": (api, "one role for several pools"),
    }
    for name, (document, remedy) in documents.items():
        length = _length(document) + ADDED_CHARACTERS
        if length > POLICY_CHARACTERS_MAX:
            yield (
                f"detcloud:{name} needs a policy of {length} characters: expected at most "
                f"{POLICY_CHARACTERS_MAX}, which IAM allows a role; list fewer, or {remedy}"
            )


def _environment_problems(settings: Settings) -> Iterator[str]:
    """Yield a line for each group of settings that fills a function's environment."""
    place = len(settings.names.iam_path + settings.names.iam_prefix)
    grants = {"repositories": settings.image_repositories, "pool_roles": settings.task_roles}
    remotes = len(describe_remote_accounts(settings.remote_accounts).encode())
    more = " and detcloud:otherClouds" if remotes else ""
    # The API's environment has the ARNs of four roles, the tick's that of the instance profile.
    sizes = (
        (f"imageRepositories and detcloud:taskRoles{more}", grants, API_BYTES + 4 * place),
        (f"tags{more}", settings.tags, TICK_BYTES + place),
    )
    for name, value, others in sizes:
        length, most = len(json.dumps(value).encode()) + remotes, ENVIRONMENT_BYTES_MAX - others
        if length > most:
            yield (
                f"detcloud:{name} are {length} bytes: expected at most {most}, which Lambda leaves "
                "of a function's environment; list fewer or shorter ones"
            )


def _length(document: Document) -> int:
    """Return the number of characters of a policy as JSON without white space."""
    return len(json.dumps(document, separators=(",", ":")))
