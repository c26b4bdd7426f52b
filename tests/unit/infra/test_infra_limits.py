"""Refusal of settings that are too long for IAM or Lambda."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.aws import trial_policies
from infra.aws.limits import (
    API_BYTES,
    ENVIRONMENT_BYTES_MAX,
    POLICY_CHARACTERS_MAX,
    TICK_BYTES,
    find_limit_problems,
)
from infra.aws.program import read_stack_config
from infra.aws.settings import Settings, parse_settings
from infra.stack_program import SettingsInvalid
from tests.emulators.policy_reader import allows
from tests.unit.infra.graphs import FRONTED, KEY, files, graph

LEAST = {
    "account": "111111111111",
    "region": "us-east-1",
    "clusterConfig": "pools.yaml",
    "adminSha256": "a" * 64,
}
TEAM = "abcdefghij0123456789"
ZONES = [f"us-east-1{letter}" for letter in "abcdef"]


def settings_of(**more: object) -> Settings:
    return parse_settings("vision", {**LEAST, **{k: json.dumps(v) for k, v in more.items()}})


def data_buckets(count: int, characters: int, folder: int) -> dict[str, str]:
    """Return `count` buckets with names of `characters` and folders of `folder` characters."""
    names = [f"{number:02d}".rjust(characters, "b") for number in range(count)]
    return {f"{name}/{'f' * (folder - 1)}": "read-write" for name in names}


def repositories(count: int, characters: int) -> list[str]:
    host = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
    return [f"{host}/{f'{number:02d}'.rjust(characters, 'r')}" for number in range(count)]


def test_twenty_buckets_fit_into_a_policy() -> None:
    settings = settings_of(dataBuckets=data_buckets(20, 32, 20))
    assert find_limit_problems(settings) == []
    document = trial_policies.data_access(settings.data_buckets)
    length = len(json.dumps(document, separators=(",", ":")))
    assert length < POLICY_CHARACTERS_MAX
    for data_bucket in settings.data_buckets:
        place = f"arn:aws:s3:::{data_bucket.bucket}"
        assert allows(document, "s3:PutObject", f"{place}/{data_bucket.folder}1")
        assert not allows(document, "s3:PutObject", f"{place}/1")
        assert allows(document, "s3:GetBucketLocation", place)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            {"dataBuckets": data_buckets(20, 63, 200)},
            "detcloud:dataBuckets needs a policy of [0-9]+ characters: expected at most 10240",
        ),
        (
            {"imageRepositories": repositories(50, 200)},
            "detcloud:imageRepositories needs a policy of",
        ),
        (
            {"imageRepositories": repositories(50, 30)},
            "detcloud:imageRepositories and detcloud:taskRoles are [0-9]+ bytes",
        ),
        (
            {"tags": {f"key-{number}": "v" * 100 for number in range(20)}},
            "detcloud:tags are [0-9]+ bytes",
        ),
    ],
)
def test_refuses_settings_beyond_the_limits_of_iam_and_lambda(
    more: Mapping[str, object], expected: str
) -> None:
    problems = find_limit_problems(settings_of(**more))
    assert [name for name in problems if re.match(expected, name)], problems


def test_program_refuses_settings_beyond_the_limits(tmp_path: Path) -> None:
    tags = json.dumps({f"key-{number}": "v" * 100 for number in range(20)})
    config = {**FRONTED, "detcloud:tags": tags, **files(tmp_path)}
    with pytest.raises(SettingsInvalid, match="detcloud:tags are"):
        read_stack_config(TEAM, config)


def test_remaining_variables_fit_into_the_reserved_bytes(tmp_path: Path) -> None:
    more = {
        "detcloud:region": "us-east-1",
        "detcloud:zones": json.dumps(ZONES),
        "detcloud:kmsKey": KEY,
        "detcloud:dataBuckets": '{"photos": "read"}',
        "detcloud:imageRepositories": json.dumps(repositories(1, 9)),
        "detcloud:tags": '{"team": "vision"}',
    }
    functions = graph(TEAM, {**FRONTED, **more}, tmp_path).inputs_of("Function")

    def size(name: str, given: Mapping[str, Any]) -> int:
        """Return the bytes of an environment, with at least 100 for each value.

        Names and ARNs from AWS have at most 100.
        """
        variables = {**functions[name]["environment"]["variables"], **given}
        return sum(
            len(key) + len(json.dumps(variable).ljust(100)) for key, variable in variables.items()
        )

    api = functions["api"]["environment"]["variables"]["DETCLOUD_TRIAL_GRANTS"]
    grants = {k: v for k, v in json.loads(api).items() if k != "repositories"}
    assert size("api", {"DETCLOUD_TRIAL_GRANTS": json.dumps(grants)}) < API_BYTES
    tick = functions["tick"]["environment"]["variables"]["DETCLOUD_NETWORK"]
    network = {k: v for k, v in json.loads(tick).items() if k != "tags"}
    assert size("tick", {"DETCLOUD_NETWORK": json.dumps(network)}) < TICK_BYTES
    assert max(API_BYTES, TICK_BYTES) < ENVIRONMENT_BYTES_MAX
