"""Errors of malformed texts describe the form in words instead of a regular expression."""

import re
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.config.pools import check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.text_forms import form_words
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import call

ROOT = Path(__file__).parents[3]
# A pattern written as a literal has no words for error messages.
PLAIN = re.compile(r"\bpattern=[rf]*[\"']")
EXPRESSION = re.compile(r"\[\^?[A-Za-z0-9]-|\{\d+(,\d*)?\}|\^|\\x|regex|pattern")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "/models",
            {"name": "a/b"},
            "name: must be letters and digits of ASCII, spaces and _.+:@()-, of which the first is "
            "a letter, a digit or _ and the last no space",
        ),
        (
            "/models",
            {"name": "a", "workspace": "one,other"},
            "workspace: must be a name without commas and control characters",
        ),
        (
            "/checkpoint-uploads",
            {"trial_id": 1, "uuid": "X"},
            "uuid: must be a UUID of 36 characters in lower case",
        ),
        (
            "/experiments",
            {"config": "{}", "model_code": "0"},
            "model_code: must be a SHA-256: 64 hexadecimal digits in lower case",
        ),
    ],
)
def test_malformed_text_is_refused_in_words(
    cluster: Cluster, path: str, body: dict[str, object], message: str
) -> None:
    answer = call(cluster.app, "POST", V1 + path, token=TOKENS[Role.USER], content=body)
    assert answer.status == 422
    assert answer.json["error"]["message"] == f"the request is not valid: {message}"


def test_malformed_part_of_a_path_is_refused_in_words(cluster: Cluster) -> None:
    message = cluster.get("/models/a%2Cb").json["error"]["message"]
    assert "must be letters and digits of ASCII" in message
    assert EXPRESSION.search(message) is None


def test_malformed_text_of_a_configuration_is_refused_in_words() -> None:
    section = "{type: aws, instance_type: c5.large, max_instances: 1, file_systems: [{id: efs-1}]}"
    with pytest.raises(ConfigInvalid) as refused:
        check_cluster(f"resource_pools: [{{pool_name: a, provider: {section}}}]")
    messages = [
        problem.message
        for problem in refused.value.problems
        if problem.path.endswith("file_systems[0].id")
    ]
    assert "must be the id of a file system, like fs-0123456789abcdef0" in messages[0]


def test_patterns_of_the_server_have_words() -> None:
    """A pattern that is a literal argument would appear in errors as a regular expression."""
    files = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "control_plane").rglob("*.py")
        if PLAIN.search(path.read_text())
    ]
    assert files == []
    assert form_words("^unknown$") == "of another form"
