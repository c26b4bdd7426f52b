"""Settings about resources that trials use outside the cluster.

These are data buckets, roles for trials' code and private image repositories. Each parser of
PARSERS returns a value, or raises ValueError with a text of what was expected.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from detcloud.shared.registries import ecr_repository
from infra.aws.names import Names
from infra.data_buckets import DataBucket, find_own_buckets, parse_data_buckets

BUCKETS_MAX: Final = 20
REPOSITORIES_MAX: Final = 50
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ROLE: Final = re.compile(r"arn:aws:iam::[0-9]{12}:role/[\w+=,.@/-]{1,512}")
_REPOSITORY: Final = re.compile(r"[a-z0-9][a-z0-9._/-]{0,255}\*?|\*")


def find_inconsistencies(values: Mapping[str, Any], names: Names) -> list[str]:
    """Return a line for each data bucket or task role that is the cluster's own.

    Return [] if none is. `values` maps field names of Settings to parsed values.
    """
    found = find_own_buckets(values.get("data_buckets", ()), (names.objects, names.checkpoints))
    for pool, role in values.get("task_roles", {}).items():
        if role.startswith(f"arn:aws:iam::{names.account}:role{names.iam_path}{names.role('')}"):
            found.append(
                f"detcloud:taskRoles gives the trials of {pool} {role}: expected a role that is "
                "not the cluster's own"
            )
    return found


def _parse_buckets(text: str) -> tuple[DataBucket, ...]:
    """Return the data buckets of a JSON map. Raise ValueError for other texts."""
    return parse_data_buckets(_decode_json(text), _BUCKET, BUCKETS_MAX)


def _parse_task_roles(text: str) -> dict[str, str]:
    """Return the ARN of a role by the pool, from a JSON map. Raise ValueError for other texts."""
    given = _decode_json(text)
    if not isinstance(given, dict) or not all(
        isinstance(role, str) and _ROLE.fullmatch(role) for role in given.values()
    ):
        raise ValueError('a map like {"POOL": "arn:aws:iam::ACCOUNT:role/..."}')
    return given


def _parse_repositories(text: str) -> tuple[str, ...]:
    """Return the ECR repositories of a JSON list without duplicates.

    Raise ValueError for other texts.
    """
    expected = (
        f"a list of at most {REPOSITORIES_MAX} like "
        "ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY, of which a * at the end stands for the "
        "rest"
    )
    given = _decode_json(text)
    if not isinstance(given, list) or len(given) > REPOSITORIES_MAX:
        raise ValueError(expected)
    for name in given:
        repository = ecr_repository(name) if isinstance(name, str) else None
        if repository is None or not _REPOSITORY.fullmatch(name.partition("/")[2]):
            raise ValueError(expected)
    return tuple(dict.fromkeys(given))


def _decode_json(text: str) -> Any:
    """Return the decoded JSON, or None if the text is not valid JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "dataBuckets": _parse_buckets,
    "taskRoles": _parse_task_roles,
    "imageRepositories": _parse_repositories,
}
